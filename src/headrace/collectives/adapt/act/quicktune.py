"""Quicktune: all masters reassigned at once by the present bandwidths (PLink 4.3.1).

The paper wants to minimise the largest of t(i) = sum over chunks c of S(c) * (LM(i, c) * |G(i)| +
GM(i, c) * |G|) / sum over n of BW(i, n), and takes shares in proportion to bandwidth for it: of
global masters a group's to what leaves it, of local masters a rank's to what leaves the rank. (Its
two symbols for a group mean the same one.) Two things are changed here:

- t(i) leaves out what a rank sends without being master of anything, its own vector. With that, a
  slow rank's share in proportion is too large (see `two_level.balance`).
- Sums over peers count a network card once per peer, slow links to slow peers against a fast rank,
  and large groups for more than small ones. BW(i, j) is what a flow alone gets; so the fastest flow
  of a rank shows the rank's rate, and the fastest across that of its group's uplink.

Rates count in the slower direction: a master receives what it sends. What flows share is not in a
matrix: where a topology has it, `two_level.fitted_masters` makes use of that too.
"""

import numpy as np

from headrace.collectives.adapt.act.bandwidth import checked_bandwidth
from headrace.collectives.plan.generators.templates.two_level.balance import (
    balanced_masters,
    group_shares,
)
from headrace.collectives.plan.generators.templates.two_level.masters import Masters


def quicktune(masters: Masters, bandwidth: np.ndarray) -> Masters:
    """Return new masters for the same groups and chunks.

    Parameters
    ----------
    bandwidth : (n, n) bytes/s from i to j, what one flow gets, as used or else from the profile;
        diagonal ignored.

    Raises
    ------
    InputError : if a pair's bandwidth is unknown.
    """
    rates = checked_bandwidth(bandwidth, masters.ranks)
    groups, group_of = masters.groups, masters.group_of
    if masters.ranks == 1:
        return masters
    across = np.where(group_of[:, None] != group_of[None, :], rates, 0.0)
    ranks = np.minimum(rates.max(axis=1), rates.max(axis=0))
    leaving, entering = np.zeros(len(groups)), np.zeros(len(groups))
    np.maximum.at(leaving, group_of, across.max(axis=1))
    np.maximum.at(entering, group_of, across.max(axis=0))
    between = np.minimum(leaving, entering) if len(groups) > 1 else np.ones(1)
    shares = group_shares(groups, between, ranks)
    return balanced_masters(groups, masters.chunks, rank_rates=ranks, group_shares=shares)
