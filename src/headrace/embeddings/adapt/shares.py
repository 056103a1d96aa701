"""Trainers' shares of batches, by their rates: pure.

All trainers end a step together: with equal shares the slowest one decides. Gradients are averaged
over the examples of all, so shares change no result but for the order in which numbers are added.
"""

from dataclasses import dataclass, replace
from statistics import median

from headrace.embeddings.adapt.seen import JobChanges, SeenBatch, SeenStep
from headrace.embeddings.changes import JobChange

_STEPS = 32
"""Whose medians are compared: a pause of one trainer is none of them."""

_CONFIRMATIONS = 3
"""Looks in a row that name the same trainer as the slowest."""

_GAIN = 0.1
"""Of a step's time, that other shares have to save."""

_LEAST, _MOST = 0.5, 1.5
"""Of an equal share: a trainer that hangs has none, and memory is planned for equal ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """Memory between observations.

    Attributes
    ----------
    shares : of batches that arrive from now on.
    since : first batch that has them.
    steps : since the last look.
    slowest, confirmed : trainer that looks in a row named, and their number.
    """

    shares: tuple[float, ...]
    since: int = 0
    steps: tuple[SeenStep, ...] = ()
    slowest: int | None = None
    confirmed: int = 0

    @classmethod
    def equal(cls, trainers: int) -> "ShareState":
        """Return equal shares."""
        return cls(shares=(1 / trainers,) * trainers)


def follow_rates(state: ShareState, seen: SeenBatch) -> tuple[ShareState, JobChanges]:
    """Return the next state, and the change."""
    told: JobChanges = ()
    for step in seen.steps:
        if step.batch < state.since or len(step.compute_s) != len(state.shares):
            continue
        state = replace(state, steps=(*state.steps, step))
        if len(state.steps) == _STEPS:
            state, change = _look(replace(state, steps=()), state.steps, seen)
            told += change
    return state, told


def _look(
    state: ShareState, steps: tuple[SeenStep, ...], seen: SeenBatch
) -> tuple[ShareState, JobChanges]:
    costs = [
        median(step.compute_s[trainer] / max(1, step.examples[trainer]) for step in steps)
        for trainer in range(len(state.shares))
    ]
    shares = shares_by_cost(costs)
    examples = median(sum(step.examples) for step in steps)
    saved_s = (_slowest_s(state.shares, costs) - _slowest_s(shares, costs)) * examples
    slowest = max(range(len(costs)), key=lambda trainer: state.shares[trainer] * costs[trainer])
    if saved_s <= _GAIN * median(step.step_s for step in steps):
        return replace(state, slowest=None, confirmed=0), ()
    confirmed = state.confirmed + 1 if slowest == state.slowest else 1
    if confirmed < _CONFIRMATIONS:
        return replace(state, slowest=slowest, confirmed=confirmed), ()
    others = median(cost for trainer, cost in enumerate(costs) if trainer != slowest)
    ratio = costs[slowest] / max(1e-12, others)
    change = JobChange(
        name="shares",
        before=state.shares,
        after=shares,
        batch=seen.batch,
        reason=f"an example takes trainer {slowest} {ratio:.2f} times as long as others",
    )
    return ShareState(shares=shares, since=seen.arriving), (change,)


def _slowest_s(shares: tuple[float, ...], costs: list[float]) -> float:
    return max(share * cost for share, cost in zip(shares, costs, strict=True))


def shares_by_cost(costs: list[float]) -> tuple[float, ...]:
    """Return shares that take all trainers equally long, within the limits of a share.

    Parameters
    ----------
    costs : seconds of an example at every trainer.
    """
    trainers = len(costs)
    least, most = _LEAST / trainers, _MOST / trainers
    rates = [1 / max(1e-12, cost) for cost in costs]
    fixed: dict[int, float] = {}
    while True:
        free = [trainer for trainer in range(trainers) if trainer not in fixed]
        left, rate = 1 - sum(fixed.values()), sum(rates[trainer] for trainer in free)
        shares = {trainer: left * rates[trainer] / rate for trainer in free}
        # the ones farthest outside first: fixing a low share lowers others, a high one raises them
        low = {trainer: least for trainer, share in shares.items() if share < least}
        high = {trainer: most for trainer, share in shares.items() if share > most}
        lacking = sum(least - shares[trainer] for trainer in low)
        beyond = sum(shares[trainer] - most for trainer in high)
        if not low and not high:
            return tuple({**fixed, **shares}[trainer] for trainer in range(trainers))
        fixed.update(low if lacking >= beyond else high)
