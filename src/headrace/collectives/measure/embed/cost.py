"""Cost of a grouping: the predicted time of one two-level aggregation over it."""

import numpy as np

from headrace.collectives.measure.embed.kmeans import labels_of
from headrace.collectives.measure.racks.partition import Grouping
from headrace.errors import InputError


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
