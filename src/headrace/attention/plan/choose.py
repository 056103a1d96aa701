"""Choose bits and clusters by the loss that they add on held-out text."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headrace.attention.plan.clusters import representatives_by_error
from headrace.attention.plan.formats import Format
from headrace.attention.plan.plan import AttentionPlan, Choice, LayerPlan, plain
from headrace.attention.profile import AttentionProfile

Losses = Sequence[float]
"""Mean loss of a token, of every sample of the held-out text."""
Measure = Callable[[str, AttentionPlan], Losses]
"""Measures a plan; the text names it for progress."""

_LADDER = (
    (Format.INT8, Format.INT8),
    (Format.INT4, Format.INT8),
    (Format.INT4, Format.INT4),
)
"""Keys and values, from more bytes to fewer. Keys go first: with a unit for each channel they lose
less by 4 bits than values."""
_HOPELESS = 4.0
"""Times the loss that is allowed, above which fewer bytes of the same kind are not tried."""


def choose(
    profile: AttentionProfile, measure: Measure, *, allowed_loss: float, element_bytes: int
) -> AttentionPlan:
    """Return the plan of the fewest bytes whose added loss is allowed, with the frontier.

    Bits are chosen first, then the heads of keys that go, the same number in every layer: sharing
    them out by output error, or by the loss of few tokens, loses more than it saves. Both are
    measured together before they are chosen together.

    Parameters
    ----------
    allowed_loss : relative to the model's own; it may not be exceeded by the measured added loss
        and one standard error.
    """
    full = _full_plan(profile, element_bytes)
    own = measure("the model's own cache", full)
    choices = [_choice("the model's own cache", full, own, own)]
    plans = {choices[0].name: full}

    def tried(name: str, plan: AttentionPlan) -> Choice:
        choice = _choice(name, plan, measure(name, plan), own)
        choices.append(choice)
        plans[name] = plan
        return choice

    def allowed(choice: Choice) -> bool:
        return choice.added_loss + choice.standard_error <= allowed_loss

    bits: list[tuple[Format, Format]] = []
    for keys, values in _LADDER:
        if any(layer.heads.dim % 32 for layer in profile.layers) and Format.INT4 in (keys, values):
            break
        choice = tried(_bits(keys, values), _with_bits(full, keys, values))
        if choice.added_loss > _HOPELESS * allowed_loss:
            break
        if allowed(choice):
            bits.append((keys, values))
    for name, plan in _fewer_keys(profile, full):
        choice = tried(name, plan)
        if choice.added_loss > _HOPELESS * allowed_loss:
            break
        for keys, values in reversed(bits):
            if not allowed(choice):
                break
            both = f"{name}, {_bits(keys, values)}"
            if allowed(tried(both, _with_bits(plan, keys, values))):
                break
    best = min(filter(allowed, choices), key=lambda choice: (choice.share, choice.added_loss))
    return replace(plans[best.name], frontier=frontier(choices), chosen=best.name)


def frontier(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return the choices that no other beats in bytes and in loss, by bytes."""
    best: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.share, choice.added_loss)):
        if not best or choice.added_loss < best[-1].added_loss:
            best.append(choice)
    return tuple(best)


def _full_plan(profile: AttentionProfile, element_bytes: int) -> AttentionPlan:
    return AttentionPlan(
        layers=tuple(plain(layer.heads) for layer in profile.layers),
        model=profile.model,
        text=profile.text,
        element_bytes=element_bytes,
    )


def _with_bits(plan: AttentionPlan, keys: Format, values: Format) -> AttentionPlan:
    layers = tuple(replace(layer, keys=keys, values=values) for layer in plan.layers)
    return replace(plan, layers=layers)


def _bits(keys: Format, values: Format) -> str:
    named = {Format.MODEL: "own", Format.INT8: "8-bit", Format.INT4: "4-bit"}
    return f"{named[keys]} keys, {named[values]} values"


def _fewer_keys(
    profile: AttentionProfile, full: AttentionPlan
) -> Iterator[tuple[str, AttentionPlan]]:
    """Yield plans with ever fewer heads of keys, the same share of every layer's."""
    most = max(layer.heads.key_value_heads for layer in profile.layers)
    for count in range(most - 1, 0, -1):
        layers = tuple(
            _with_keys(layer, profile.layers[index].output_error, count / most)
            for index, layer in enumerate(full.layers)
        )
        yield f"keys of {count} of {most} heads", replace(full, layers=layers)


def _with_keys(layer: LayerPlan, error: NDArray[np.float64], share: float) -> LayerPlan:
    key_heads = max(1, math.ceil(share * layer.heads.key_value_heads))
    representatives, _ = representatives_by_error(error, layer.heads, key_heads)
    return replace(
        layer,
        clusters=len(set(representatives.tolist())),
        key_heads=key_heads,
        representatives=tuple(int(head) for head in representatives),
    )


def _choice(name: str, plan: AttentionPlan, losses: Losses, own: Losses) -> Choice:
    added, error = added_loss(losses, own)
    return Choice(name=name, share=plan.share, added_loss=added, standard_error=error)


def added_loss(losses: Losses, own: Losses) -> tuple[float, float]:
    """Return the loss over the model's own, less 1, and its standard error: of samples in pairs."""
    mean = statistics.fmean(own)
    differences = [loss - reference for loss, reference in zip(losses, own, strict=True)]
    error = 0.0
    if len(differences) > 1:
        error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences) / mean, error / mean
