"""Distances from probes: latency, inverse bandwidth, or both (PLink 4.1.1)."""

from typing import Literal

import numpy as np

from headrace.errors import InputError

Scale = Literal["log", "linear"]
"""`log`: a factor of two is the same distance between near hosts as between far ones, and noise
proportional to the value (queues, competing traffic) weighs the same everywhere. `linear`: the
probe's own unit, in which start-up costs of hosts add up."""

_FLOOR = 0.1
"""Log-distance of the closest pairs, so that noise between equals does not become structure."""

_CLOSEST = 0.02
"""Share of pairs that count as closest: below it is noise, and the minimum as origin would put that
much distance between all others."""


def pair_distances(
    *,
    latency_us: np.ndarray | None = None,
    bandwidth: np.ndarray | None = None,
    latency_known: np.ndarray | None = None,
    bandwidth_known: np.ndarray | None = None,
    latency_weight: float = 0.5,
    scale: Scale = "log",
) -> tuple[np.ndarray, np.ndarray]:
    """Return distances (n, n), symmetric with diagonal 0, and which of them are known (n, n).

    Both directions of a pair are averaged, on the given scale. With `latency_us` and
    `bandwidth` each is divided by its median; a pair that only one of them covers has that one.

    Parameters
    ----------
    latency_us : (n, n) above 0, from row to column; the diagonal is ignored.
    bandwidth : (n, n) bytes/s above 0, from row to column; its inverse is the distance.
    latency_known, bandwidth_known : (n, n) bool, measured pairs (default: all).
    latency_weight : weight of latency where both are given, from 0 to 1.

    Raises
    ------
    InputError : if neither is given, their sizes differ, or a value makes no sense.
    """
    if not 0.0 <= latency_weight <= 1.0:
        raise InputError(f"latency_weight is {latency_weight}, needs 0 to 1")
    slowness: list[tuple[np.ndarray, np.ndarray, float]] = []
    if latency_us is not None:
        values, known = _checked("latency_us", latency_us, latency_known)
        slowness.append((values, known, latency_weight))
    if bandwidth is not None:
        values, known = _checked("bandwidth", bandwidth, bandwidth_known)
        slowness.append((1.0 / values, known, 1.0 - latency_weight))
    if not slowness:
        raise InputError("neither latency_us nor bandwidth is given, needs at least one")
    if len({len(values) for values, _, _ in slowness}) > 1:
        raise InputError(
            f"latency_us is of {len(slowness[0][0])} hosts, bandwidth of {len(slowness[1][0])}: "
            f"needs the same hosts"
        )
    parts = [(*_scaled(values, known, scale), weight) for values, known, weight in slowness]
    if len(parts) == 1:
        return parts[0][:2]
    total = np.zeros_like(parts[0][0])
    weights = np.zeros_like(total)
    everything = np.zeros(total.shape, dtype=bool)
    for values, known, weight in parts:
        median = float(np.median(values[known])) if known.any() else 0.0
        total += np.where(known, weight * values / (median or 1.0), 0.0)
        weights += np.where(known, weight, 0.0)
        if weight > 0:
            everything |= known
    return np.divide(total, weights, out=np.zeros_like(total), where=weights > 0), everything


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
    mean, known = _scaled(values, known, "linear")
    if known.sum() != len(mean) * (len(mean) - 1):
        mean = _completed(mean, known)
    return mean, known.astype(float)


def _checked(
    name: str, values: np.ndarray, known: np.ndarray | None, *, zero: bool = False
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


def _scaled(values: np.ndarray, known: np.ndarray, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of both directions on that scale, and where there is one."""
    if scale == "log":
        values = np.log(values)
    count = known.astype(float) + known.T
    total = np.where(known, values, 0.0)
    both = count > 0
    mean = np.divide(total + total.T, count, out=np.zeros_like(total), where=both)
    if scale == "log" and both.any():
        mean[both] = _FLOOR + np.maximum(mean[both] - np.quantile(mean[both], _CLOSEST), 0.0)
    return mean, both


def _completed(mean: np.ndarray, known: np.ndarray) -> np.ndarray:
    from scipy.sparse.csgraph import shortest_path

    # a zero would be no edge
    graph = np.where(known, np.maximum(mean, 1e-12), 0.0)
    along = np.asarray(shortest_path(graph, directed=False))
    apart = np.argwhere(~np.isfinite(along))
    if len(apart):
        i, j = apart[0].tolist()
        raise InputError(
            f"no known distances connect hosts {i} and {j}, needs a chain of measured pairs "
            f"between any two hosts"
        )
    return np.where(known, mean, along)
