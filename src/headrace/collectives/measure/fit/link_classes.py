"""Costs of all pairs of hosts from the fits of some, evened out by kind of link.

Links of one *kind* join the same two groups in the same direction (or lie inside one group).
Where their fits differ only by noise they take one cost, so that plans can use the symmetry; a
link that really differs keeps its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from headrace.collectives.measure.fit.alpha_beta import LinkFit
from headrace.collectives.measure.probes.round_robin import Pair
from headrace.collectives.measure.racks.partition import Grouping, labels_of

Costs = dict[Pair, LinkFit]
"""(source host, destination host) -> cost."""

_SAME_BETA = 1.1
_SAME_ALPHA = 1.5
_ODD_BETA = 1.04  # repeated fits of one link on a machine with nothing else to do are within 1%
_ODD_ALPHA = 1.5
_CLEARLY_SLOWER = 0.75


def unloaded_pairs(groups: Grouping, all_pairs_up_to: int, per_kind: int) -> tuple[Pair, ...]:
    """Return the ordered pairs of hosts for unloaded probes.

    All of them where hosts are few; else `per_kind` of each kind, spread over different hosts. By
    information: the first of every kind (inside a group before between groups), then the second
    of every kind, and so on.
    """
    hosts = sorted(host for group in groups for host in group)
    if len(hosts) <= all_pairs_up_to:
        pairs = [(a, b) for a in hosts for b in hosts if a != b]
    else:
        pairs = [
            pair for here in groups for there in groups for pair in _few(here, there, per_kind)
        ]
    turns = [
        (turn, here != there, here, there, pair)
        for (here, there), kind in _kinds(pairs, groups).items()
        for turn, pair in enumerate(kind)
    ]
    return tuple(pair for *_, pair in sorted(turns))


def _few(here: Sequence[int], there: Sequence[int], most: int) -> list[Pair]:
    pairs: list[Pair] = []
    for turn in range(most):
        a = here[turn % len(here)]
        b = there[(turn + (here == there)) % len(there)]
        if a != b and (a, b) not in pairs:
            pairs.append((a, b))
    return pairs


def outlier_pairs(fits: Mapping[Pair, LinkFit], groups: Grouping) -> list[Pair]:
    """Return the outliers of their kind, the farthest first, for a second probe.

    Most of them were only disturbed. In a kind of two links, both are outliers.
    """
    outliers: list[tuple[float, Pair]] = []
    for pairs in _kinds(fits, groups).values():
        typical = median([fits[pair] for pair in pairs])
        for pair in pairs:
            alpha = fits[pair].alpha_us / max(typical.alpha_us, 1e-9)
            beta = fits[pair].beta_us_per_mb / typical.beta_us_per_mb
            off = max(alpha / _ODD_ALPHA, beta / _ODD_BETA, 1 / beta / _ODD_BETA)
            if off > 1:
                outliers.append((off, pair))
    return [pair for _, pair in sorted(outliers, reverse=True)]


def even_out(fits: Mapping[Pair, LinkFit], groups: Grouping) -> Costs:
    """Give links of one kind the median alpha and beta of the kind, if theirs is close to it."""
    costs: Costs = {}
    for pairs in _kinds(fits, groups).values():
        typical = median([fits[pair] for pair in pairs])
        for pair in pairs:
            fit = fits[pair]
            costs[pair] = replace(
                fit,
                alpha_us=_snap(fit.alpha_us, typical.alpha_us, _SAME_ALPHA),
                beta_us_per_mb=_snap(fit.beta_us_per_mb, typical.beta_us_per_mb, _SAME_BETA),
            )
    return costs


def complete(bandwidth: np.ndarray, groups: Grouping, fits: Mapping[Pair, LinkFit]) -> Costs:
    """Return costs of all ordered pairs of hosts from those of some.

    A pair without unloaded probes takes the median of its kind, but is never faster than its ends:
    inside a group, where round-robin pairs share no uplink, a pair that was clearly slower than
    its kind keeps that bandwidth. A kind without a probed pair takes the median of similar kinds:
    inside groups, or between them.
    """
    group_of = labels_of(groups).tolist()
    every = [(a, b) for a in range(len(group_of)) for b in range(len(group_of)) if a != b]
    costs: Costs = {}
    for (here, there), pairs in _kinds(every, groups).items():
        probed = [pair for pair in pairs if pair in fits] or _alike(fits, group_of, here == there)
        typical = median([fits[pair] for pair in probed])
        usual = float(np.median([bandwidth[pair] for pair in probed]))
        for pair in pairs:
            slow = here == there and bandwidth[pair] < _CLEARLY_SLOWER * usual
            beta = typical.beta_us_per_mb * (usual / bandwidth[pair] if slow else 1.0)
            costs[pair] = fits.get(pair) or replace(typical, beta_us_per_mb=beta)
    # a host's best link inside its group bounds the rate of its own port
    floor = {
        host: min((costs[host, peer].beta_us_per_mb for peer in group if peer != host), default=0.0)
        for group in groups
        for host in group
    }
    for (a, b), fit in costs.items():
        if (a, b) not in fits and group_of[a] != group_of[b]:
            beta = max(fit.beta_us_per_mb, floor[a], floor[b])
            costs[a, b] = replace(fit, beta_us_per_mb=beta)
    return costs


def _alike(fits: Mapping[Pair, LinkFit], group_of: Sequence[int], inside: bool) -> list[Pair]:
    """Return probed pairs inside groups, or between them; all probed pairs if there are none."""
    alike = [(a, b) for a, b in fits if (group_of[a] == group_of[b]) == inside]
    return alike or list(fits)


def median(fits: Sequence[LinkFit]) -> LinkFit:
    """Return the median of each field."""
    return LinkFit(
        **{name: float(np.median([getattr(f, name) for f in fits])) for name in LinkFit.__slots__}
    )


def _kinds(
    pairs: Mapping[Pair, LinkFit] | Sequence[Pair], groups: Grouping
) -> dict[Pair, list[Pair]]:
    """Return (group of the source, group of the destination) -> pairs."""
    group_of = labels_of(groups).tolist()
    kinds: dict[Pair, list[Pair]] = {}
    for a, b in pairs:
        kinds.setdefault((group_of[a], group_of[b]), []).append((a, b))
    return kinds


def _snap(value: float, typical: float, factor: float) -> float:
    return typical if typical / factor <= value <= typical * factor else value
