"""Grouping hosts (PLink 4.1.3): racks as measurements show them, groups for two-level plans.

In order of use: `racks` finds what hosts share a switch, `kmeans` makes groups within limits of
size, `cost` foresees what aggregation over groups takes, `choose` puts them together.
"""

from headrace.collectives.measure.group.choose import (
    RankedGrouping,
    balanced_random,
    candidate_groups,
    square_root,
    square_root_groups,
)
from headrace.collectives.measure.group.cost import aggregation_load, aggregation_time
from headrace.collectives.measure.group.kmeans import (
    Clustering,
    constrained_kmeans,
    pick,
    size_limits,
)
from headrace.collectives.measure.group.racks import group_hosts
from headrace.collectives.measure.partition import Grouping

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
