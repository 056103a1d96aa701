"""The largest batch that fits."""

from collections.abc import Callable
from dataclasses import replace

from headrace.memory.errors import BudgetError
from headrace.memory.graph import Graph
from headrace.memory.plan.engine import ScheduleEngine
from headrace.memory.plan.solution import SolveLimits
from headrace.memory.plan.solve import solve_schedule
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import plain_schedule

_FIRST = SolveLimits(seconds=20.0, bound_seconds=0.0, interval_work=0.0, rounds=0, gap=1.0)
"""Of a search that ends at its first schedule."""


def largest_that_fits(
    fits: Callable[[int], bool], *, guess: int = 1, tolerance: float = 0.0
) -> int:
    """Return the largest number from 1 on that fits, by doubling and bisection; 0: none.

    Parameters
    ----------
    fits : whether a batch fits; so does every smaller one.
    guess : where the search begins.
    tolerance : share of the largest that the result may be below it.
    """
    low, high = 0, max(guess, 1)
    while fits(high):
        low, high = high, 2 * high
    least = 1
    while high - low > least:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
        least = max(1, int(tolerance * low))
    return low


def largest_of_convex(
    peak_bytes: Callable[[int], int], budget_bytes: int, *, none_bytes: int, guess: int, most: int
) -> int:
    """Return the largest number from 1 to `most` whose peak is within the budget; 0: none.

    Each peak takes long. A step's is the greatest of several that are each linear in the samples:
    of few it is that of the gradients, of more that of the activations. So peaks are below the
    chord between any two, and where that of a number that fits and one that does not meets the
    budget, a number fits.

    Parameters
    ----------
    none_bytes : peak of no samples.
    guess : where the search begins.
    """
    if none_bytes > budget_bytes:
        return 0
    low, low_bytes, high = 0, none_bytes, min(guess, most)
    while (high_bytes := peak_bytes(high)) <= budget_bytes:
        if high == most:
            return most
        low, low_bytes, high = high, high_bytes, min(4 * high, most)
    is_slow = False
    while (span := high - low) > 1:
        share = 0.5 if is_slow else (budget_bytes - low_bytes) / (high_bytes - low_bytes)
        middle = min(max(low + int(share * span), low + 1), high - 1)
        middle_bytes = peak_bytes(middle)
        if middle_bytes <= budget_bytes:
            low, low_bytes = middle, middle_bytes
        else:
            high, high_bytes = middle, middle_bytes
        is_slow = high - low > span // 2
    return low


def largest_below(fits: Callable[[int], bool], high: int) -> int:
    """Return about the largest number below `high`, which does not fit, that does; 0: none.

    Each try takes long, and `high` is near: the result is within a hundredth of the largest.
    """
    step = max(1, high // 32)
    while True:
        low = max(0, high - step)
        if low == 0 or fits(low):
            return _between(fits, low, high, least=max(1, low // 100))
        high, step = low, 2 * step


def has_schedule(
    graph: Graph, budget_bytes: int, engine: ScheduleEngine, *, seconds: float = 20.0
) -> bool:
    """Return whether a schedule within the budget is found, without a search for a fast one.

    Parameters
    ----------
    engine : of the local search, such as `headrace._native.ScheduleSearch`.
    seconds : most that the search takes.
    """
    if verify(graph, plain_schedule(graph)).peak_bytes <= budget_bytes:
        return True
    try:
        solve_schedule(graph, budget_bytes, engine, limits=replace(_FIRST, seconds=seconds))
    except BudgetError:
        return False
    return True


def _between(fits: Callable[[int], bool], low: int, high: int, least: int = 1) -> int:
    while high - low > least:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
