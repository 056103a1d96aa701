"""Which ranges of memory that a call reads share bytes with those that it writes."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate


def overlaps(read: Iterable[tuple[int, int]], written: Iterable[tuple[int, int]]) -> list[bool]:
    """Return for each range of `read` whether it shares a byte with any of `written`.

    Ranges are addresses with numbers of bytes. The time is that of sorting them, as a call of n
    ranks has n of both.
    """
    ranges = sorted((address, address + nbytes) for address, nbytes in written if nbytes)
    starts = [start for start, _ in ranges]
    ends = list(accumulate((end for _, end in ranges), max))

    def shared(address: int, nbytes: int) -> bool:
        begun = bisect_left(starts, address + nbytes)  # written ranges that start before the end
        return nbytes > 0 and begun > 0 and ends[begun - 1] > address

    return [shared(address, nbytes) for address, nbytes in read]
