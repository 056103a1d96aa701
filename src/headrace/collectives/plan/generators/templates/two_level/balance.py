"""Masters for unequal rates: equal finishing times, with the traffic of every rank included.

PLink's Quicktune (4.3.1) divides masters in proportion to bandwidth. That balances the traffic that
masters add; but a rank that masters nothing still sends its whole vector and receives the result:
at 40% of the rate and 40% of a share it finishes last. Here a share is in proportion to the
remaining bandwidth: for a common finishing time T, a rank's capacity until T less its own traffic.
"""

from collections.abc import Callable

import numpy as np

from headrace.collectives.plan.generators.templates.two_level.masters import (
    Masters,
    masters_from_weights,
)
from headrace.collectives.plan.locality import RankGroups


def balanced_masters(
    groups: RankGroups, chunks: int, *, rank_rates: np.ndarray, group_shares: np.ndarray
) -> Masters:
    """Return masters with equal finishing times of the ranks of a group.

    With G > 1 groups, a rank of a group of `size` sends and receives, in vectors, ``1 + l * (size -
    1) + t * (G - 2)``, being local master of a fraction l and global master of a fraction t of the
    chunks: own chunks up, results down, partial sums and results across.

    Parameters
    ----------
    rank_rates : (ranks,) rates of sending (or receiving), in any unit.
    group_shares : (groups,) every group's share of global masters; see `group_shares`.
    """
    weights = np.zeros(sum(map(len, groups)))
    for index, group in enumerate(groups):
        rates = rank_rates[list(group)]
        # Nothing crosses if there is only one group.
        across = float(group_shares[index]) * (len(groups) - 2) if len(groups) > 1 else -1.0
        more = len(group) - 1 + across
        weights[list(group)] = _levelled(lambda t, r=rates, m=more: (t * r - 1.0) / m, rates, more)
    return masters_from_weights(groups, chunks, group_weights=group_shares, rank_weights=weights)


def group_shares(
    groups: RankGroups, group_rates: np.ndarray, rank_rates: np.ndarray | None = None
) -> np.ndarray:
    """Return (groups,) shares of global masters with equal finishing times of the groups.

    A group sends (and receives) across, in vectors, ``1 + share * (G - 2)``, and its ranks
    altogether ``2 * size - 1 + share * (G - 2)``. With two groups the location of a chunk's global
    master makes no difference.

    Parameters
    ----------
    group_rates : (groups,) rates out of (or into) a group, in any unit.
    rank_rates : (ranks,) of the ranks, in the same unit; None: only traffic across groups counts.
    """
    more = len(groups) - 2
    sizes = np.array([len(group) for group in groups], dtype=np.float64)
    members = (
        np.full(len(groups), np.inf)
        if rank_rates is None
        else np.array([rank_rates[list(group)].sum() for group in groups])
    )

    def supply(time: float) -> np.ndarray:
        return np.minimum(time * group_rates - 1.0, time * members - (2 * sizes - 1.0)) / more

    return _levelled(supply, group_rates, more)


def _levelled(supply: Callable[[float], np.ndarray], rates: np.ndarray, more: float) -> np.ndarray:
    """Return `supply`, where positive, at the least time at which it adds up to 1.

    It grows with time, without bound; the time is found by bisection, to the last bit. Where
    masters add no traffic (`more` is 0), or there is one only, shares are in proportion to rates.
    """
    if more <= 0 or len(rates) == 1:
        return rates / rates.sum()

    def shares(time: float) -> np.ndarray:
        return np.maximum(supply(time), 0.0)

    low, high = 0.0, 1.0
    while shares(high).sum() < 1.0:
        low, high = high, 2.0 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if shares(middle).sum() >= 1.0 else (middle, high)
    return shares(high)
