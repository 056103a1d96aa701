"""The largest batch that fits."""

from collections.abc import Callable


def largest_that_fits(fits: Callable[[int], bool], most: int | None = None) -> int:
    """Return the largest number from 1 to `most` that fits, by doubling and bisection; 0: none.

    Parameters
    ----------
    fits : whether a batch fits; so does every smaller one.
    """
    low, high = 0, 1
    while (most is None or high <= most) and fits(high):
        low, high = high, 2 * high
    if most is not None:
        high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
