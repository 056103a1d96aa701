"""Links by their ends: what leaves and what enters a host, a NIC or a switch port."""

import itertools
from collections.abc import Iterator

import numpy as np


def members(keys: np.ndarray, count: int, items: np.ndarray | None = None) -> list[tuple[int, ...]]:
    """Return the `items` (default: the indices) of every key 0 to count - 1."""
    order = np.argsort(keys, kind="stable")
    ends = np.searchsorted(keys[order], np.arange(count + 1))
    sorted_items = order if items is None else items[order]
    return [
        tuple(sorted_items[low:high].tolist()) for low, high in itertools.pairwise(ends.tolist())
    ]


def by_direction(
    src: np.ndarray, dst: np.ndarray, count: int, links: np.ndarray | None = None
) -> Iterator[tuple[int, str, tuple[int, ...]]]:
    """Yield (owner, "out" or "in", links) for every owner 0 to count - 1, none without links.

    Parameters
    ----------
    src, dst : (links,) the owner of either end.
    links : (links,) their indices (default: 0, 1, ...).
    """
    out, into = (members(end, count, links) for end in (src, dst))
    for owner in range(count):
        for direction, mine in (("out", out[owner]), ("in", into[owner])):
            if mine:
                yield owner, direction, mine
