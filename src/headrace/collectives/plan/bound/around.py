"""The cut around one rank: mostly it alone limits all flows into that rank, or out of it."""

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import maximum_flow

_UNIT = 1 << 28
"""Largest sum of integer capacities: they are 32 bits wide."""

_MARGIN = 1e-5
"""Least relative slack of all other cuts: far more than rounding takes."""


def limits(
    src: np.ndarray, dst: np.ndarray, capacity: np.ndarray, rank: int, weight: np.ndarray
) -> bool:
    """Return whether the links into `rank` alone limit the flows from all ranks to it at once.

    If so, the linear program over all links has one optimum alone, in which these links, and no
    others, have equal prices. A flow that fills them is searched for, over links that are made a
    little smaller than they are (Ford and Fulkerson 1956).

    Parameters
    ----------
    src, dst, capacity : of every link.
    weight : (ranks,), relative amount that each sends; 0 at `rank` itself.
    """
    n = len(weight)
    into = dst == rank
    unit = _UNIT / max(float(capacity[into].sum()), float(capacity.max()))
    received = np.floor(capacity[into] * unit)
    size = np.floor(capacity * unit * (1 - _MARGIN))
    size[into] = received
    sends = np.flatnonzero(weight)
    share = np.ceil(weight[sends] / weight.sum() * received.sum())
    # All come from one more node, which has a link to each of them.
    ends = np.append(src, np.full(len(sends), n)), np.append(dst, sends)
    graph = sparse.csr_array((np.append(size, share).astype(np.int32), ends), shape=(n + 1, n + 1))
    return bool(maximum_flow(graph, n, rank).flow_value >= received.sum())
