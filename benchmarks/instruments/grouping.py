"""Groupings of hosts that PLink compares, and the cost by which it does."""

import numpy as np

from headrace.collectives.measure.embed.clusters import ELASTICITY, clustered, square_root
from headrace.collectives.measure.racks.partition import Grouping, labels_of
from headrace.errors import InputError


def square_root_groups(points: np.ndarray, *, seed: int = 0) -> Grouping:
    """Return about sqrt(n) groups: the fewest messages of a global master (PLink, eq. 2).

    Parameters
    ----------
    points : (n, dimensions), as `Embedding.coordinates`.
    seed : of the starts of k-means, and of ties.

    Raises
    ------
    InputError : for points that make no sense.
    """
    return clustered(points, square_root(len(points)), ELASTICITY, seed)


def balanced_random(hosts: int, seed: int = 0) -> Grouping:
    """Return about sqrt(n) groups of about sqrt(n) hosts at random: PLink's baseline (4.1.3).

    Raises
    ------
    InputError : for no hosts.
    """
    if hosts < 1:
        raise InputError(f"hosts is {hosts}, needs at least 1")
    order = np.random.default_rng(seed).permutation(hosts)
    parts = np.array_split(order, square_root(hosts))
    return tuple(sorted(tuple(sorted(part.tolist())) for part in parts))


def aggregation_load(groups: Grouping) -> np.ndarray:
    """Return (n, n): the share of the vector that host i sends to host j in one allreduce.

    Two-level hierarchical aggregation (PLink 3.2) with masters spread evenly: every member of a
    group of m is local master of 1/m of the vector, every host global master of 1/n. Data goes
    from members to local masters and from those to global ones, and back the same way.
    """
    labels = labels_of(groups)
    n = len(labels)
    size = np.array([len(group) for group in groups])[labels]
    inside = np.repeat(2.0 / size[:, None], n, axis=1)
    across = (1.0 / size[:, None] + 1.0 / size) / n
    load = np.where(labels[:, None] == labels, inside, across)
    np.fill_diagonal(load, 0.0)
    return load


def aggregation_time(groups: Grouping, bandwidth: np.ndarray) -> float:
    """Return the time of one allreduce over `groups`, in us per MB of the vector.

    Equation 2 of PLink with measured bandwidths for equal ones: of the busiest host, the bytes of
    each peer over the bandwidth to it, sending or receiving, whichever takes longer. Shared
    capacities count only as far as they slowed probes of disjoint pairs.

    Parameters
    ----------
    bandwidth : (n, n) bytes/s above 0 from row to column; the diagonal is ignored.

    Raises
    ------
    InputError : if the sizes differ.
    """
    load = aggregation_load(groups)
    if load.shape != np.shape(bandwidth):
        raise InputError(
            f"bandwidth has shape {np.shape(bandwidth)}, needs {load.shape} for these groups"
        )
    slowness = np.divide(1e12, bandwidth, out=np.zeros_like(load), where=load > 0)
    took = load * slowness
    return float(max(took.sum(axis=0).max(), took.sum(axis=1).max()))
