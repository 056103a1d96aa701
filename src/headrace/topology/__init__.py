"""Ranks, hosts, links and shared capacities."""

from headrace.topology.topology import BYTES_PER_MB, Link, SharedCapacity, Topology

__all__ = ["BYTES_PER_MB", "Link", "SharedCapacity", "Topology"]
