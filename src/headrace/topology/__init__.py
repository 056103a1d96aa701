"""Ranks, hosts, links, switches and shared capacities."""

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

__all__ = [
    "BYTES_PER_MB",
    "Link",
    "LinkColumns",
    "SharedCapacity",
    "Switch",
    "Topology",
    "beta_from_bytes_per_s",
    "subgraph",
    "transposed",
    "without_local_alpha",
]
