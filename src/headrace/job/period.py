"""The period of a sequence of calls: a training step, as the calls of collectives show it."""

from collections.abc import Hashable, Sequence

import numpy as np

REPEATS = 3
"""Least repetitions in a row that make a pattern a period."""

_NEARLY_ALL = 0.9
_MOST_TOGETHER = 32
_REGULAR = 0.25
_MUCH_MORE_REGULAR = 0.6


def find_period(keys: Sequence[Hashable]) -> int | None:
    """Return the period, in calls, of the end of `keys`, or None.

    A period is one if the last keys are at least `REPEATS` of it. Of several, those that explain
    most of the sequence count, and of those the shortest: in the midst of ``a a a b a a a b a a a``
    the last keys repeat after one call, too, but that is no evidence of ``b``.
    """
    numbers: dict[Hashable, int] = {}
    back = [numbers.setdefault(key, len(numbers)) for key in reversed(keys)]
    covered = {
        period: period + again
        for period, again in enumerate(_matches(back))
        if period and period + again >= REPEATS * period
    }
    if not covered:
        return None
    enough = _NEARLY_ALL * max(covered.values())
    return min(period for period, length in covered.items() if length >= enough)


def regroup(times: np.ndarray, period: int) -> int:
    """Return the number of periods in a step, where all calls of a step may be alike.

    Ten equal buckets a step have a period of one call: the time between two calls is then short
    nine times and long once, and only the times of ten calls together are alike.

    Parameters
    ----------
    times : (n,) seconds, when each call was made.
    period : in calls.
    """
    spread: list[float] = []
    for together in range(1, _MOST_TOGETHER + 1):
        lag = together * period
        if len(times) < (REPEATS + 1) * lag:
            break
        spread.append(_spread(times[lag:] - times[:-lag]))
    if not spread or spread[0] <= _REGULAR:
        return 1
    for m in range(1, len(spread) - 1):
        if spread[m] <= _MUCH_MORE_REGULAR * min(spread[m - 1], spread[m + 1]):
            return m + 1
    return 1


def _spread(durations: np.ndarray) -> float:
    """Mean deviation from the mean over the mean: a median would not see one pause in ten."""
    mean = float(durations.mean())
    return float(np.abs(durations - mean).mean()) / mean if mean > 0 else 0.0


def _matches(values: Sequence[int]) -> list[int]:
    """Return for every p how many values from `values[p]` on equal those from 0 (Z-function)."""
    size = len(values)
    matches = [size] + [0] * max(size - 1, 0)
    left = right = 0
    for p in range(1, size):
        length = min(right - p, matches[p - left]) if p < right else 0
        while p + length < size and values[length] == values[p + length]:
            length += 1
        matches[p] = length
        if p + length > right:
            left, right = p, p + length
    return matches
