"""Two-level hierarchical aggregation with explicit masters (PLink 3.2, 4.2.1)."""

from headrace.collectives.plan.generators.templates.two_level.balance import (
    balanced_masters,
    group_shares,
)
from headrace.collectives.plan.generators.templates.two_level.fit import (
    cheapest_groups,
    fitted_masters,
    topology_rates,
)
from headrace.collectives.plan.generators.templates.two_level.masters import (
    Masters,
    masters_from_weights,
    spread_masters,
)
from headrace.collectives.plan.generators.templates.two_level.schedule import chunk_count, two_level

__all__ = [
    "Masters",
    "balanced_masters",
    "cheapest_groups",
    "chunk_count",
    "fitted_masters",
    "group_shares",
    "masters_from_weights",
    "spread_masters",
    "topology_rates",
    "two_level",
]
