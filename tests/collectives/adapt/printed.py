"""Quicktune's shares as printed (PLink 4.3.1): in proportion to sums of bandwidths."""

import numpy as np

from headrace.collectives.plan.generators.templates.two_level.masters import (
    Masters,
    masters_from_weights,
)


def printed(masters: Masters, bandwidth: np.ndarray) -> Masters:
    rates = np.where(np.eye(masters.ranks, dtype=bool), 0.0, bandwidth)
    groups, group_of = masters.groups, masters.group_of
    across = np.where(group_of[:, None] != group_of[None, :], rates, 0.0)
    ways = [np.bincount(group_of, across.sum(axis=axis), len(groups)) for axis in (0, 1)]
    return masters_from_weights(
        groups,
        masters.chunks,
        group_weights=np.minimum(*ways) if len(groups) > 1 else np.ones(1),
        rank_weights=np.minimum(rates.sum(axis=1), rates.sum(axis=0)),
    )
