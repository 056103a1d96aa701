"""Which hosts sit together: clusters of a bandwidth matrix (PLink 4.1.3).

PLink fixes the number of groups at sqrt(n), which finds 3 in two racks of four. Here the number
comes from the data: every cut of an average-linkage tree is scored by its silhouette, and racks
count as found only if the best cut is distinct and its groups are really faster inside.

Not seen: racks whose uplinks are as fast as their hosts, unless tournament pairs met on them in
the same direction. There a lone pair across is as fast as one inside.
"""

from collections.abc import Sequence

import numpy as np

Groups = tuple[tuple[int, ...], ...]

LEAST_SILHOUETTE = 0.5
"""Below this mean silhouette the hosts are one group: there is no structure to use."""

LEAST_SPEEDUP = 1.4
"""A pair inside a group must have this many times the bandwidth of a pair across (medians)."""

_FLOOR = 0.1  # distance of the closest pair, so that noise between equals is not seen as structure
_TIE = 0.02


def bandwidth_distances(bandwidth: np.ndarray) -> np.ndarray:
    """Return symmetric distances from a matrix of bandwidths (row to column; diagonal ignored).

    Distance is inverse bandwidth on a logarithmic scale, the mean of both directions, in which
    a factor of two weighs the same between slow pairs as between fast ones.
    """
    n = len(bandwidth)
    off = ~np.eye(n, dtype=bool)
    logs = np.zeros((n, n))
    logs[off] = -np.log(bandwidth[off])
    distances = (logs + logs.T) / 2
    if off.any():
        distances[off] += _FLOOR - distances[off].min()
    np.fill_diagonal(distances, 0.0)
    return distances


def group_hosts(bandwidth: np.ndarray) -> Groups:
    """Return groups of hosts, each sorted, ordered by their first host.

    Parameters
    ----------
    bandwidth : (n, n) of bytes per second, measured from row to column. Probes that ran side by
        side may have shared an uplink: that only makes far pairs look farther.
    """
    n = len(bandwidth)
    everyone = (tuple(range(n)),)
    if n < 3:
        return everyone
    # imported here: only the rank that groups pays for the start-up of scikit-learn
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform
    from sklearn.metrics import silhouette_score

    distances = bandwidth_distances(bandwidth)
    tree = linkage(squareform(distances, checks=False), method="average")
    scored: list[tuple[float, int, Groups]] = []
    for count in range(2, n):
        labels = fcluster(tree, count, criterion="maxclust")
        groups = _from_labels(labels.tolist())
        if len(groups) != count or _speedup(distances, groups) < LEAST_SPEEDUP:
            continue
        score = float(silhouette_score(distances, labels, metric="precomputed"))
        scored.append((score, _diversity(groups), groups))
    best = max((score for score, _, _ in scored), default=-1.0)
    if best < LEAST_SILHOUETTE:
        return everyone
    # among equals the groups of most even size (PLink 4.1.2), then the fewest
    tied = [row for row in scored if row[0] >= best - _TIE]
    return min(tied, key=lambda row: (row[1], len(row[2]), -row[0]))[2]


def _from_labels(labels: Sequence[int]) -> Groups:
    members: dict[int, list[int]] = {}
    for host, label in enumerate(labels):
        members.setdefault(label, []).append(host)
    return tuple(sorted(tuple(hosts) for hosts in members.values()))


def _diversity(groups: Groups) -> int:
    sizes = [len(group) for group in groups]
    return max(sizes) - min(sizes)


def _speedup(distances: np.ndarray, groups: Groups) -> float:
    """Median bandwidth inside groups over median bandwidth across."""
    label = np.zeros(len(distances), dtype=int)
    for index, group in enumerate(groups):
        label[list(group)] = index
    upper = np.triu(np.ones_like(distances, dtype=bool), 1)
    same = label[:, None] == label[None, :]
    inside, across = distances[upper & same], distances[upper & ~same]
    if not len(inside) or not len(across):
        return 0.0
    return float(np.exp(np.median(across) - np.median(inside)))
