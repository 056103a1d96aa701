"""Distances from probes: latency or inverse bandwidth (PLink 4.1.1)."""

import numpy as np

from headrace.errors import InputError

_FLOOR = 0.1
"""Log-distance of the closest pairs, so that noise between equals does not become structure."""

_CLOSEST = 0.02
"""Share of pairs that count as closest: below it is noise, and the minimum as origin would put that
much distance between all others."""


def pair_distances(
    *,
    latency_us: np.ndarray | None = None,
    bandwidth: np.ndarray | None = None,
    known: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return distances (n, n), symmetric with diagonal 0, and which of them are known (n, n).

    The logarithm of latency or of inverse bandwidth, the mean of both directions: a factor of two
    is the same distance between near hosts as between far ones, and noise proportional to the
    value (queues, competing traffic) weighs the same everywhere.

    Parameters
    ----------
    latency_us : (n, n) above 0, from row to column; the diagonal is ignored.
    bandwidth : (n, n) bytes/s above 0, in place of `latency_us`.
    known : (n, n) bool, measured pairs (default: all).

    Raises
    ------
    InputError : for a wrong shape, or a value that makes no sense.
    """
    if bandwidth is None:
        values, known = _checked("latency_us", latency_us, known)
    else:
        values, known = _checked("bandwidth", bandwidth, known)
        values = 1.0 / values
    mean, known = _both_ways(np.log(values), known)
    if known.any():
        mean[known] = _FLOOR + np.maximum(mean[known] - np.quantile(mean[known], _CLOSEST), 0.0)
    return mean, known


def check_distances(
    distances: np.ndarray, known: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return symmetric distances, complete, and the weight of each pair (1.0 known, else 0.0).

    A pair that is known in one direction has that distance. An unknown one has the shortest-path
    distance over known ones, as an initial value.

    Raises
    ------
    InputError : for a wrong shape, a distance that is no finite number of at least 0, or hosts
        that no known distances connect.
    """
    values, known = _checked("distances", distances, known, zero=True)
    mean, known = _both_ways(values, known)
    if known.sum() != len(mean) * (len(mean) - 1):
        mean = _completed(mean, known)
    return mean, known.astype(float)


def _checked(
    name: str, values: np.ndarray | None, known: np.ndarray | None, *, zero: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 with 1.0 where nothing is known, and what is known, the diagonal left out."""
    try:
        values = np.array(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not a table of numbers: {error}") from error
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not values.size:
        raise InputError(f"{name} has shape {values.shape}, needs (hosts, hosts)")
    if known is None:
        known = np.ones(values.shape, dtype=bool)
    elif np.shape(known) != values.shape:
        raise InputError(f"known has shape {np.shape(known)}, needs {values.shape} as {name} has")
    known = np.array(known, dtype=bool)
    np.fill_diagonal(known, val=False)
    good = np.isfinite(values) & ((values >= 0) if zero else (values > 0))
    wrong = np.argwhere(known & ~good)
    if len(wrong):
        i, j = wrong[0].tolist()
        raise InputError(
            f"{name}[{i}, {j}] is {values[i, j]}, needs a finite number "
            f"{'of at least' if zero else 'above'} 0 (or to be left out as not known)"
        )
    return np.where(known, values, 1.0), known


def _both_ways(values: np.ndarray, measured: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of both directions, and where there is one."""
    count = measured.astype(float) + measured.T
    total = np.where(measured, values, 0.0)
    mean = np.divide(total + total.T, count, out=np.zeros_like(total), where=count > 0)
    return mean, count > 0


def _completed(mean: np.ndarray, measured: np.ndarray) -> np.ndarray:
    from scipy.sparse.csgraph import shortest_path

    # a zero would be no edge
    graph = np.where(measured, np.maximum(mean, 1e-12), 0.0)
    along = np.asarray(shortest_path(graph, directed=False))
    apart = np.argwhere(~np.isfinite(along))
    if len(apart):
        i, j = apart[0].tolist()
        raise InputError(
            f"no known distances connect hosts {i} and {j}, needs a chain of measured pairs "
            f"between any two hosts"
        )
    return np.where(measured, mean, along)
