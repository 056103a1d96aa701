"""Choose bits and clusters by the loss that they add on held-out text."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from headrace.attention.errors import AttentionError
from headrace.attention.plan.chai import chai_plan
from headrace.attention.plan.clusters import representatives_by_error, with_representatives
from headrace.attention.plan.formats import CODE_DIMENSIONS, StorageFormat
from headrace.attention.plan.layer_shares import key_head_levels, key_heads_by_loss
from headrace.attention.plan.plan import (
    FIRST_TOKENS,
    AttentionPlan,
    FrontierPoint,
    uncompressed_layer,
)
from headrace.attention.profile import AttentionProfile

Losses = Sequence[float]
"""Mean loss of a token, of every sample of the held-out text."""
OWN = "the model's own cache"
Measure = Callable[[str, AttentionPlan], Losses]
"""Measures a plan; the text names it for progress."""

_LADDER = (
    (StorageFormat.INT8, StorageFormat.INT8),
    (StorageFormat.INT4, StorageFormat.INT8),
    (StorageFormat.INT4, StorageFormat.INT4),
)
"""Keys and values, from more bytes to fewer."""
_MORE_TOKENS = 64
_LOSS_SHARES = (2.0, 1.0, 0.5, 0.25)
"""Of the allowed loss, that the losses of layers may add up to: their sum is an estimate."""
_HOPELESS = 4.0
"""Times the loss that is allowed, above which fewer bytes of the same kind are not tried."""


def choose(
    profile: AttentionProfile, measure: Measure, *, allowed_loss: float, element_bytes: int
) -> AttentionPlan:
    """Return the plan of the fewest bytes whose added loss is allowed, with the frontier.

    Bits are chosen first, then the heads of keys that go: the same number in every layer, with
    membership fixed or each request's own, whichever loses less; and more in the layers that lose
    little, by the loss that each adds alone (output errors of layers do not compare). Both are
    measured together with the bits before they are chosen together. The clusters of the paper
    (section 6.2.2) are measured beside them.

    Parameters
    ----------
    allowed_loss : relative to the model's own; it may not be exceeded by the measured added loss
        and one standard error.

    Raises
    ------
    AttentionError : the model's own loss is not a number.
    """
    trials = _Trials(_full_plan(profile, element_bytes), measure, allowed_loss)
    bits = _allowed_bits(trials)
    _try_elbows(trials, profile)
    if _try_fewer_keys(trials, profile, bits):
        _try_layers(trials, profile, bits)
    return trials.best()


class _Trials:
    """Plans that were measured, beside the model's own cache."""

    def __init__(self, full: AttentionPlan, measure: Measure, allowed_loss: float) -> None:
        self.full = full
        self._measure = measure
        self.allowed_loss = allowed_loss
        self._own = measure(OWN, full)
        if not math.isfinite(sum(self._own)):
            raise AttentionError(
                f"the model's own loss is {sum(self._own)}: its weights are damaged, or too large "
                "for their type"
            )
        self._plans: dict[str, AttentionPlan] = {}
        self._choices: dict[str, FrontierPoint] = {}
        self._add(OWN, full, self._own)

    def _add(self, name: str, plan: AttentionPlan, losses: Losses) -> FrontierPoint:
        added, error = added_loss(losses, self._own)
        self._plans[name] = plan
        self._choices[name] = FrontierPoint(
            name=name, share=plan.share, added_loss=added, standard_error=error
        )
        return self._choices[name]

    def measured(self, name: str, plan: AttentionPlan) -> FrontierPoint:
        """Measure a plan."""
        return self._add(name, plan, self._measure(name, plan))

    def choice(self, name: str) -> FrontierPoint:
        """Return the measured point of a plan."""
        return self._choices[name]

    def allows(self, choice: FrontierPoint) -> bool:
        """Return whether a choice's loss is allowed."""
        return choice.likely_loss <= self.allowed_loss

    def is_hopeless(self, choice: FrontierPoint) -> bool:
        """Return whether fewer bytes of the same kind need not be tried."""
        return choice.added_loss > _HOPELESS * self.allowed_loss

    def plan_of(self, choice: FrontierPoint) -> AttentionPlan:
        """Return the plan of a choice."""
        return self._plans[choice.name]

    def best(self) -> AttentionPlan:
        """Return the allowed plan of the fewest bytes, with the frontier of all."""
        choices = list(self._choices.values())
        best = min(
            filter(self.allows, choices), key=lambda choice: (choice.share, choice.likely_loss)
        )
        return replace(self.plan_of(best), frontier=frontier(choices), chosen=best.name)


def _allowed_bits(trials: _Trials) -> list[tuple[StorageFormat, StorageFormat]]:
    """Measure ever fewer bits of keys and values; return those whose loss is allowed."""
    allowed: list[tuple[StorageFormat, StorageFormat]] = []
    packs = all(layer.heads.dim % CODE_DIMENSIONS == 0 for layer in trials.full.layers)
    for keys, values in _LADDER:
        if StorageFormat.INT4 in (keys, values) and not packs:
            break
        choice = trials.measured(_bits(keys, values), _with_bits(trials.full, keys, values))
        if trials.is_hopeless(choice):
            break
        if trials.allows(choice):
            allowed.append((keys, values))
    return allowed


def _try_elbows(trials: _Trials, profile: AttentionProfile) -> None:
    """Measure the paper's clusters: each layer's at its elbow, of each request's own heads."""
    plan = chai_plan(profile, element_bytes=trials.full.element_bytes)
    if any(layer.clustered for layer in plan.layers):
        trials.measured("clusters by elbow, of each request", plan)


def _try_fewer_keys(
    trials: _Trials, profile: AttentionProfile, bits: Sequence[tuple[StorageFormat, StorageFormat]]
) -> bool:
    """Measure ever fewer heads of keys, alone and with the fewest bits that are allowed.

    Returns whether one head less of all layers is not hopeless.
    """
    heads = [layer.heads.key_value_heads for layer in profile.layers]
    most = max(heads)
    for count in range(most - 1, 0, -1):
        counts = [max(1, math.ceil(count / most * layer_heads)) for layer_heads in heads]
        fixed = _with_counts(trials.full, profile, counts)
        name = f"keys of {count} of {most} heads"
        choice = min(
            (trials.measured(*named) for named in _memberships(name, fixed)),
            key=lambda choice: choice.added_loss,
        )
        if trials.is_hopeless(choice):
            return count < most - 1
        _try_bits(trials, choice, bits)
    return most > 1


def _try_bits(
    trials: _Trials, choice: FrontierPoint, bits: Sequence[tuple[StorageFormat, StorageFormat]]
) -> None:
    """Measure an allowed choice with the fewest bits with which it is allowed, too."""
    if not trials.allows(choice):
        return
    for keys, values in reversed(bits):
        plan = _with_bits(trials.plan_of(choice), keys, values)
        if trials.allows(trials.measured(f"{choice.name}, {_bits(keys, values)}", plan)):
            return


def _try_layers(
    trials: _Trials, profile: AttentionProfile, bits: Sequence[tuple[StorageFormat, StorageFormat]]
) -> None:
    """Measure fewer heads of keys in each layer alone, and then in all, as many as may be allowed.

    Of every number of bits that is allowed: fewer of them leave less of the loss to heads.
    """
    heads = [layer.heads for layer in profile.layers]
    most = [layer.key_value_heads for layer in heads]
    added = [_losses_of_layer(trials, profile, index) for index in range(len(heads))]
    for keys, values in ((StorageFormat.MODEL, StorageFormat.MODEL), *bits):
        full = _with_bits(trials.full, keys, values)
        spent = max(0.0, trials.choice(_bits(keys, values)).likely_loss)
        tried: set[tuple[int, ...]] = {tuple(most)}
        for share in _LOSS_SHARES:
            allowed = share * (trials.allowed_loss - spent)
            counts = key_heads_by_loss(added, most, [layer.dim for layer in heads], allowed)
            if counts in tried:
                continue
            tried.add(counts)
            name = f"keys of {sum(counts)} of {sum(most)} heads in all layers, by their losses"
            name += "" if keys is StorageFormat.MODEL else f", {_bits(keys, values)}"
            if trials.allows(trials.measured(name, _with_counts(full, profile, counts))):
                break


def _losses_of_layer(trials: _Trials, profile: AttentionProfile, index: int) -> dict[int, float]:
    """Return the losses that fewer heads of keys of one layer add, until they are hopeless."""
    most = [layer.heads.key_value_heads for layer in profile.layers]
    losses: dict[int, float] = {}
    for count in key_head_levels(most[index], len(most)):
        counts = [*most[:index], count, *most[index + 1 :]]
        name = f"keys of {count} of {most[index]} heads in layer {index}"
        choice = trials.measured(name, _with_counts(trials.full, profile, counts))
        losses[count] = choice.added_loss
        if trials.is_hopeless(choice):
            break
    return losses


def _with_counts(
    full: AttentionPlan, profile: AttentionProfile, counts: Sequence[int]
) -> AttentionPlan:
    """Return the plan of so many heads of keys in every layer, fixed."""
    layers = tuple(
        layer
        if count == layer.heads.key_value_heads
        else with_representatives(
            layer, representatives_by_error(measured.output_error, layer.heads, count)[0]
        )
        for layer, measured, count in zip(full.layers, profile.layers, counts, strict=True)
    )
    return replace(full, layers=layers)


def _memberships(name: str, fixed: AttentionPlan) -> Iterator[tuple[str, AttentionPlan]]:
    """Yield a plan with its representatives, and with those of each request's first tokens.

    More of them than the paper's five: a chat template makes these equal for all requests.
    """
    yield f"{name}, fixed", fixed
    layers = tuple(replace(layer, representatives=None) for layer in fixed.layers)
    for tokens in (FIRST_TOKENS, _MORE_TOKENS):
        plan = replace(fixed, layers=layers, first_tokens=tokens)
        yield f"{name}, by the first {tokens} tokens", plan


def frontier(choices: Sequence[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """Return the choices of finite loss that no other beats in bytes and in likely loss, by bytes.

    The one of the fewest bytes that is allowed is among them.
    """
    best: list[FrontierPoint] = []
    finite = [choice for choice in choices if math.isfinite(choice.likely_loss)]
    for choice in sorted(finite, key=lambda choice: (choice.share, choice.likely_loss)):
        if not best or choice.likely_loss < best[-1].likely_loss:
            best.append(choice)
    return tuple(best)


def _full_plan(profile: AttentionProfile, element_bytes: int) -> AttentionPlan:
    return AttentionPlan(
        layers=tuple(uncompressed_layer(layer.heads) for layer in profile.layers),
        model=profile.model,
        text=profile.text,
        element_bytes=element_bytes,
    )


def _with_bits(plan: AttentionPlan, keys: StorageFormat, values: StorageFormat) -> AttentionPlan:
    layers = tuple(replace(layer, keys=keys, values=values) for layer in plan.layers)
    return replace(plan, layers=layers)


def _bits(keys: StorageFormat, values: StorageFormat) -> str:
    named = {StorageFormat.MODEL: "own", StorageFormat.INT8: "8-bit", StorageFormat.INT4: "4-bit"}
    if keys is values is StorageFormat.MODEL:
        return OWN
    return f"{named[keys]} keys, {named[values]} values"


def added_loss(losses: Losses, own: Losses) -> tuple[float, float]:
    """Return the loss over the model's own, less 1, and its standard error: of samples in pairs."""
    mean = statistics.fmean(own)
    added, error = mean_and_error(
        [loss - reference for loss, reference in zip(losses, own, strict=True)]
    )
    return added / mean, error / mean


def mean_and_error(numbers: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard error: 0 of one number; both infinite if any is not finite."""
    if not all(map(math.isfinite, numbers)):
        return math.inf, math.inf
    error = statistics.stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
    return statistics.fmean(numbers), error
