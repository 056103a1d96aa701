"""Racks of hosts, inferred from a bandwidth matrix by maximum likelihood.

PLink fixes the number of groups at sqrt(n), which finds 3 in two racks of four. Here the number
comes from the data. In the model of racks the logarithms of bandwidth inside have one mean and
variance, and those across another, as the share across depends on the load of the uplinks. Every
cut of two linkage trees is a candidate; the likeliest is accepted if it is likelier than one rack
by more than chance explains.

Not detected: racks whose uplinks are as fast as their hosts, unless round-robin pairs shared them
in the same direction. There a lone pair across is as fast as one inside; see `racks.search`.
"""

import math
from collections.abc import Iterator

import numpy as np

from headrace.collectives.measure.embed.distances import pair_distances
from headrace.collectives.measure.racks.partition import Grouping, diversity, groups_of, labels_of

LEAST_SPEEDUP = 1.4
"""A pair inside a group must have this many times the bandwidth of a pair across (medians)."""

EVIDENCE = 1.25
"""Factor by which the gain in log-likelihood over "no racks" must exceed the logarithm of the
number of partitions. The best of them gains 0.7 times that from noise alone (log-normal, 0.3), and
1.2 times at most in forty trials each of 8, 12, 16 and 32 hosts."""

_ALL_CUTS_UP_TO = 64
_SAME = 1e-6
_PRIOR = 4.0  # weight, in pairs, of the common variance in each: two equal pairs prove little
_LEAST_VARIANCE = 1e-4  # of logarithms: bandwidths are known to a per cent at best


def group_hosts(bandwidth: np.ndarray) -> Grouping:
    """Return groups of hosts, each sorted, ordered by their first host.

    Parameters
    ----------
    bandwidth : (n, n) of bytes per second, measured from row to column. Probes that ran side by
        side may have shared an uplink, which only increases distances between racks.

    Raises
    ------
    InputError : for a bandwidth that is no finite number above 0.
    """
    distances, _ = pair_distances(bandwidth=bandwidth)
    n = len(distances)
    everyone = (tuple(range(n)),)
    if n < 3:
        return everyone
    best, grouping = EVIDENCE * log_partitions(n), everyone
    for groups in sorted(set(cuts(distances)), key=lambda cut: (diversity(cut), len(cut), cut)):
        gain, speedup = _contrast(distances, groups)
        # of equals the groups of most even size (PLink 4.1.2), then the fewest
        if speedup >= LEAST_SPEEDUP and gain > best + _SAME:
            best, grouping = gain, groups
    return grouping


def cuts(distances: np.ndarray) -> Iterator[Grouping]:
    """Yield candidate partitions: cuts of two linkage trees."""
    # imported here: only the leader pays for the start-up of scipy
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    n = len(distances)
    for method in ("average", "complete"):
        tree = linkage(squareform(distances, checks=False), method=method)
        counts = range(2, n)
        if n > _ALL_CUTS_UP_TO:  # the cuts with the widest gaps in linkage height
            gaps = np.diff(tree[:, 2])[: n - 2]
            counts = (n - 1 - np.argsort(gaps)[::-1][:_ALL_CUTS_UP_TO]).tolist()
        for count in counts:
            groups = groups_of(fcluster(tree, count, criterion="maxclust"))
            if 1 < len(groups) < n:
                yield groups


def _contrast(distances: np.ndarray, groups: Grouping) -> tuple[float, float]:
    """Return the gain in log-likelihood over one rack, and bandwidth inside over across."""
    labels = labels_of(groups)
    upper = np.triu_indices(len(labels), 1)
    near = (labels[:, None] == labels)[upper]
    every = distances[upper]
    parts = every[near], every[~near]
    rests = [float(((part - part.mean()) ** 2).sum()) for part in parts]
    pooled = sum(rests) / len(every)
    gain = len(every) / 2 * (math.log(every.var() + _LEAST_VARIANCE) + 1)
    for part, deviation in zip(parts, rests, strict=True):
        variance = (deviation + _PRIOR * pooled) / (len(part) + _PRIOR) + _LEAST_VARIANCE
        gain -= (len(part) * math.log(variance) + deviation / variance) / 2
    inside, across = parts
    if across.mean() <= inside.mean():
        return 0.0, 0.0
    return gain, float(np.exp(np.median(across) - np.median(inside)))


def log_partitions(n: int) -> float:
    """Return a tight bound (Berend and Tassa, 2010) on the log of the partitions of n things."""
    return n * math.log(0.792 * n / math.log(n + 1))
