"""The largest batch that fits."""

from collections.abc import Callable


def largest_that_fits(fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 on that fits, by doubling and bisection; 0: none.

    Parameters
    ----------
    fits : whether a batch fits; so does every smaller one.
    """
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    return _between(fits, low, high)


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


def _between(fits: Callable[[int], bool], low: int, high: int, least: int = 1) -> int:
    while high - low > least:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
