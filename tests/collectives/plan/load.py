"""Bytes that an allreduce by masters sends between ranks: D(i, j) of PLink 4.3.2."""

import numpy as np

from headrace.collectives.plan.generators.templates.two_level.masters import Masters


def load_bytes(masters: Masters, chunk_bytes: float | np.ndarray) -> np.ndarray:
    """Return (ranks, ranks) float64: the bytes one allreduce sends from i to j.

    It is symmetric: data goes up and down the same links. `chunk_bytes` is of every chunk, or one
    number for all.
    """
    n = masters.ranks
    each = np.broadcast_to(np.asarray(chunk_bytes, dtype=np.float64), (masters.chunks,))
    load = np.zeros((n, n))
    for index, group in enumerate(masters.groups):
        local, members = masters.local_master[:, index], np.array(group)
        mastered = np.bincount(local, weights=each, minlength=n)[members]
        load[np.ix_(members, members)] += mastered[:, None] + mastered[None, :]
        np.add.at(load, (local, masters.global_master), each)
        np.add.at(load, (masters.global_master, local), each)
    np.fill_diagonal(load, 0.0)
    return load
