"""Input of the tuners: checked bandwidths, and the imbalance of sent bytes."""

import numpy as np

from headrace.errors import InputError


def imbalance(sent_bytes: np.ndarray) -> float:
    """Return the most bytes that a rank sends over the least (PLink 5.6).

    Infinite if some rank sends nothing while others do; 1 if none does.
    """
    each = np.nansum(sent_bytes, axis=1)
    if each.max(initial=0.0) == 0.0:
        return 1.0
    return float(each.max() / each.min()) if each.min() > 0 else float("inf")


def checked_bandwidth(bandwidth: np.ndarray, ranks: int) -> np.ndarray:
    """Return a copy whose diagonal is 0.

    Raises
    ------
    InputError : if it is not (ranks, ranks), or a pair's rate is not a number above 0.
    """
    if bandwidth.shape != (ranks, ranks):
        raise InputError(f"bandwidth is {bandwidth.shape}, needs ({ranks}, {ranks})")
    found = bandwidth.astype(np.float64)
    off = ~np.eye(ranks, dtype=bool)
    bad = np.argwhere(off & ~(np.isfinite(found) & (found > 0)))
    if len(bad):
        i, j = bad[0]
        raise InputError(
            f"bandwidth[{i}, {j}] is {found[i, j]}, needs bytes/s above 0: of links that carried "
            "nothing, take the profile's"
        )
    np.fill_diagonal(found, 0.0)
    return found
