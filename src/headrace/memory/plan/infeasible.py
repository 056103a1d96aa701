"""Budgets without a schedule: bounds below which there is none, and the least budget with one."""

from headrace.memory.errors import BudgetError
from headrace.memory.plan.draft import Draft, SimulatedDraft
from headrace.memory.plan.incumbent import Incumbent
from headrace.memory.plan.stages import Stages
from headrace.memory.schedule import Schedule
from headrace.units import size

_LEAST_SHARE, _LEAST_S = 0.1, 2.0
"""Time for the least budget of an error, beyond the limit: a share of it, and at least seconds."""
_BISECTIONS = 8
"""Budgets that are tried to find the least with a schedule."""
_NAMED = 3
"""Storages that an error names."""


def least_bytes(stages: Stages) -> tuple[int, int]:
    """Return a bound of the bytes that every schedule needs, and the operator that needs them.

    Each operator runs at least once, by some implementation, with its operands resident.
    """
    graph, outputs_bytes = stages.graph, 0
    most, where = graph.resident_bytes, 0
    for operator in range(len(graph.operators)):
        stage = max(0, operator - graph.forward_count + 1)
        entering = stages.entering_bytes[stage] + (outputs_bytes if not stage else 0)
        implementations = stages.ways(operator)
        least = min(
            stages.run_bytes(implementation) + stages.nbytes(stages.reads(implementation))
            for implementation in implementations
        )
        if entering + least > most:
            most, where = entering + least, operator
        creates = {
            storage for implementation in implementations for storage in implementation.creates
        }
        outputs_bytes += stages.nbytes(creates & stages.kept)
    return most, where


def refuse_impossible(solve: Incumbent, starts: tuple[Schedule, ...]) -> None:
    """Raise the error of a budget that is below the need of one operator.

    Raises
    ------
    BudgetError : see `infeasible`.
    """
    needed, operator = least_bytes(solve.stages)
    if needed > solve.budget:
        raise infeasible(
            solve,
            least_draft(solve, starts),
            f"operator {solve.graph.operators[operator].place} alone needs {size(needed)}",
        )


def infeasible(solve: Incumbent, trial: SimulatedDraft, reason: str = "") -> BudgetError:
    """Return the error that names the least budget, that of a trial above the budget."""
    least, step = trial.peak_bytes, trial.peak_step
    operator = solve.graph.operators[int(trial.steps[step, 1])]
    place = f"at operator {operator.place}"
    if not reason:
        reason = f"the least that one was found for is held up {place}"
    graph = solve.graph
    live = trial.storages_at(step)
    largest = sorted(live, key=lambda storage: graph.storages[storage].nbytes, reverse=True)
    parts = [f"{size(graph.resident_bytes)} resident"]
    parts += [
        f"{size(graph.storages[storage].nbytes)} of {graph.place_of(storage)}"
        for storage in largest[:_NAMED]
    ]
    return BudgetError(
        f"no schedule fits a budget of {size(solve.budget)}: {reason}; the least with a known "
        f"schedule is {size(least)} ({least} bytes), {place}: {', '.join(parts)}"
        + (f" and {len(live) - _NAMED} smaller" if len(live) > _NAMED else ""),
        least_bytes=least,
        schedule=trial.draft.schedule(),
    )


def least_draft(solve: Incumbent, starts: tuple[Schedule, ...]) -> SimulatedDraft:
    """Return the draft with the least peak, by bisection from the starts down to the budget."""
    drafts = (Draft.plain(solve.stages), *(Draft.of(solve.stages, start) for start in starts))
    trials = filter(None, map(solve.search.simulated, drafts))
    best = min(trials, key=lambda trial: trial.peak_bytes)
    low = solve.budget
    solve.deadline = solve.seconds() + max(_LEAST_S, _LEAST_SHARE * solve.limits.seconds)
    for _ in range(_BISECTIONS):
        if solve.stopped() or best.peak_bytes <= solve.budget:
            break
        middle = (low + best.peak_bytes) // 2
        search = solve.search_within(middle)
        start = search.simulated(best.draft)
        assert start is not None
        trial = search.repair(start)
        if trial.peak_bytes < best.peak_bytes:
            best = trial
        if trial.excess:
            low = middle
    return best
