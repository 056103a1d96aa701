"""Physical affinity: agreement of measured distances with host positions (PLink 5.5)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.errors import InputError

LEVELS = ("region", "datacenter", "cluster", "row", "rack", "host")
"""Levels of the entries of a position, from the outermost in."""

Position = tuple[int | str, ...]
"""Location of a host: equal leading entries are the same units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """Count of the comparable triplets (a, b, c) whose order was measured correctly.

    Attributes
    ----------
    right : triplets whose measured order is the true one.
    comparable : triplets in which c truly is nearer to one of a and b.
    """

    right: int
    comparable: int

    @property
    def accuracy(self) -> float:
        """PAIA: the correct share, from 0 to 1; nan if nothing is comparable."""
        return self.right / self.comparable if self.comparable else float("nan")


def physical_affinity(distances: np.ndarray, positions: Sequence[Position]) -> Affinity:
    """Count the triplets of hosts whose order of distances agrees with their positions.

    Of an observer c and two others a and b, the one whose position has more leading entries in
    common with c's is truly nearer; with equally many the triplet is not comparable. It is right
    if the measured distances to c have the same strict order. Unordered: (a, b, c) and (b, a, c)
    are one triplet, which does not change the share.

    Parameters
    ----------
    distances : (n, n), from a row's host to a column's (the observer c). A pair that was not
        measured is nan: its triplets are not right.
    positions : of every host, from the outermost level in (`LEVELS`); all of one length.

    Raises
    ------
    InputError : if the sizes differ.

    Notes
    -----
    For every observer and level the measured distances of nearer hosts are sorted, and every host
    of that level counts those below its own: O(n^2 log n) instead of all n^3 triplets.
    """
    distances = np.asarray(distances, dtype=float)
    common = shared_levels(positions)
    n = len(common)
    if distances.shape != (n, n):
        raise InputError(f"distances has shape {distances.shape}, needs {(n, n)} for {n} positions")
    right = comparable = 0
    for observer in range(n):
        others = np.delete(distances[:, observer], observer)
        level = np.delete(common[:, observer], observer)
        nearer = others[:0]
        nearer_hosts = 0
        for here in np.unique(level)[::-1]:
            mine = others[level == here]
            measured = mine[~np.isnan(mine)]
            right += int(np.searchsorted(nearer, measured, side="left").sum())
            comparable += nearer_hosts * len(mine)
            nearer_hosts += len(mine)
            nearer = np.sort(np.concatenate([nearer, measured]))
    return Affinity(right=right, comparable=comparable)


def shared_levels(positions: Sequence[Position]) -> np.ndarray:
    """Return (n, n) int64: how many leading entries the positions of two hosts have in common.

    Raises
    ------
    InputError : if positions are of different lengths, or there are none.
    """
    lengths = {len(position) for position in positions}
    if len(lengths) != 1:
        raise InputError(f"positions have {sorted(lengths)} entries, needs the same number each")
    common = np.zeros((len(positions), len(positions)), dtype=np.int64)
    same = np.ones(common.shape, dtype=bool)
    for entries in zip(*positions, strict=True):
        known: dict[int | str, int] = {}
        code = np.array([known.setdefault(entry, len(known)) for entry in entries])
        same &= code[:, None] == code
        common += same
    return common
