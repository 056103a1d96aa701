"""Groups for two-level plans of a measured network: its racks, or, if none were found, clusters.

Noise can hide racks, and hosts without racks may still be nearer to some than to others. Then
clusters of the embedding are tried, sqrt(n) of them and other numbers (PLink 4.1.3), and compared
by simulation on the topology that was measured.
"""

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.measure.embed.clusters import candidate_groups
from headrace.collectives.measure.racks.partition import Grouping
from headrace.collectives.plan.generators.templates.two_level.fit import fitted_masters
from headrace.collectives.plan.generators.templates.two_level.schedule import chunk_count, two_level
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.portfolio import predict_us
from headrace.topology.profile import Profile

_MIN_GAIN = 0.05
"""Least predicted gain over no groups, for groups that are not measured racks."""

_BYTES = 4 << 20
"""Of the allreduce that groups are compared by."""

_LEAST_HOSTS, _MOST_HOSTS = 4, 32
"""Fewer make no two groups of two; with more, trying takes longer than a job should wait."""


def aggregation_groups(profile: Profile) -> Grouping:
    """Return the groups of ranks over which to aggregate.

    The racks of the profile; if it has none, those over which an allreduce of 4 MiB is predicted
    to be fastest; a single group if the gain is below 5%, or not all pairs were measured.
    """
    topology, racks = profile.topology, profile.groups
    if len(racks) > 1:
        return racks
    hosts = len(topology.hosts)
    if not _LEAST_HOSTS <= hosts <= _MOST_HOSTS:
        return racks
    bandwidth = profile.matrix("bytes_per_s")
    if not (np.isfinite(bandwidth) | np.eye(hosts, dtype=bool)).all():
        return racks
    chunks = chunk_count(_BYTES, topology.ranks)
    demand = Demand(collective=Collective.ALLREDUCE, ranks=topology.ranks, chunks=chunks)

    def predicted_us(groups: Grouping) -> float:
        program = lower(two_level(demand, fitted_masters(topology, groups, chunks)))
        return predict_us(program, topology, _BYTES)

    members = [
        [rank for rank, home in enumerate(topology.rank_host) if home == host]
        for host in range(hosts)
    ]

    def of_ranks(groups: Grouping) -> Grouping:
        return tuple(
            sorted(tuple(sorted(r for h in group for r in members[h])) for group in groups)
        )

    best = candidate_groups(bandwidth, lambda groups: predicted_us(of_ranks(groups)))[0]
    return of_ranks(best.groups) if best.cost < (1 - _MIN_GAIN) * predicted_us(racks) else racks
