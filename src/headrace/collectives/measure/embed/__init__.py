"""Grouping hosts (PLink 4.1.3): racks that measurements show, groups for two-level plans.

In order of use: `racks` finds the hosts that share a switch, `kmeans` makes groups within limits of
size, `cost` predicts the time of aggregation over groups, `choose` combines them.
"""

from headrace.collectives.measure.embed.clusters import (
    RankedGrouping,
    balanced_random,
    candidate_groups,
    square_root,
    square_root_groups,
)
from headrace.collectives.measure.embed.cost import aggregation_load, aggregation_time
from headrace.collectives.measure.embed.kmeans import (
    Clustering,
    constrained_kmeans,
    pick,
    size_limits,
)
from headrace.collectives.measure.racks.linkage import group_hosts
from headrace.collectives.measure.racks.partition import Grouping

__all__ = [
    "RankedGrouping",
    "Clustering",
    "Grouping",
    "aggregation_load",
    "aggregation_time",
    "balanced_random",
    "candidate_groups",
    "constrained_kmeans",
    "group_hosts",
    "pick",
    "size_limits",
    "square_root",
    "square_root_groups",
]
