"""Input of the tuners: checked bandwidths."""

import numpy as np

from headrace.errors import InputError


def checked_bandwidth(bandwidth: np.ndarray, ranks: int) -> np.ndarray:
    """Return a copy whose diagonal is 0.

    Raises
    ------
    InputError : if it is not (ranks, ranks), or a pair's rate is not a number above 0.
    """
    if bandwidth.shape != (ranks, ranks):
        raise InputError(f"bandwidth is {bandwidth.shape}, needs ({ranks}, {ranks})")
    rates = bandwidth.astype(np.float64)
    off = ~np.eye(ranks, dtype=bool)
    bad = np.argwhere(off & ~(np.isfinite(rates) & (rates > 0)))
    if len(bad):
        i, j = bad[0]
        raise InputError(
            f"bandwidth[{i}, {j}] is {rates[i, j]}, needs bytes/s above 0: of links that carried "
            "nothing, take the profile's"
        )
    np.fill_diagonal(rates, 0.0)
    return rates
