"""Splitting items among several links so that all of them end at the same time (water-filling)."""

import numpy as np

_SWEEPS = 60


def fair_counts(
    count: np.ndarray, allowed: np.ndarray, rate: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Return the number of items of each kind for each link, int64 (kinds, links).

    Iterated water-filling, kind by kind, makes the links' ends as equal as the kinds allow. Then
    fractions are rounded, each kind's in turn.

    Parameters
    ----------
    count : (kinds,), items of each kind.
    allowed : (kinds, links) bool, the links that can take a kind; at least one each.
    rate : (links,), items per unit of time.
    start : (links,), earliest start of each.
    """
    poured = np.zeros(allowed.shape)
    for _ in range(_SWEEPS if len(count) > 1 else 1):
        before = poured.copy()
        for kind in range(len(count)):
            poured[kind] = 0.0
            ends = start + poured.sum(axis=0) / rate
            links = np.flatnonzero(allowed[kind])
            poured[kind, links] = _pour(float(count[kind]), rate[links], ends[links])
        if np.abs(poured - before).max() < 1e-6:
            break
    whole = np.floor(poured + 1e-6).astype(np.int64)
    for kind in np.argsort(allowed.sum(axis=1), kind="stable").tolist():
        rest = poured[kind] - whole[kind]
        for _ in range(int(count[kind] - whole[kind].sum())):
            ends = start + (whole.sum(axis=0) + 1) / rate
            links = np.flatnonzero(allowed[kind])
            best = links[np.lexsort((-rest[links], np.round(ends[links], 9)))[0]]
            whole[kind, best] += 1
            rest[best] -= 1.0
    return whole


def _pour(amount: float, rate: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Fill the lowest first: amounts that make the ends reached equal."""
    order = np.argsort(ends, kind="stable")
    width = np.cumsum(rate[order])
    level = (amount + np.cumsum(rate[order] * ends[order])) / width
    # The level if the first k are filled; right for the last k whose ends are below it.
    inside = level >= ends[order] - 1e-12
    at = float(level[np.flatnonzero(inside)[-1]])
    return np.maximum(0.0, at - ends) * rate
