"""Ranks, hosts, links, switches and shared capacities."""

from typing import TYPE_CHECKING

from headrace.facades import deferred_names
from headrace.topology.topology import (
    BYTES_PER_MB,
    Link,
    LinkColumns,
    SharedCapacity,
    Switch,
    Topology,
    beta_from_bytes_per_s,
)
from headrace.topology.transforms import subgraph, transposed, without_local_alpha

if TYPE_CHECKING:
    from headrace.topology.profile import Profile

__all__ = [
    "BYTES_PER_MB",
    "Link",
    "LinkColumns",
    "Profile",
    "SharedCapacity",
    "Switch",
    "Topology",
    "beta_from_bytes_per_s",
    "subgraph",
    "transposed",
    "without_local_alpha",
]

__getattr__, __dir__ = deferred_names(__name__, __all__, {"Profile": "profile"})
