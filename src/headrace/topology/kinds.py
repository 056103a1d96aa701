"""Artifact kinds of networks: topologies, measured profiles."""

from headrace.kinds import kind_of
from headrace.topology import Topology
from headrace.topology.profile import Profile

TOPOLOGY = kind_of(
    Topology,
    summary="links and shared capacities of a network, with their costs",
    documentation="cost-model.md",
    show="headrace.cli.tables:topology_tables",
    page="headrace.report.network_page:topology_page",
)
PROFILE = kind_of(
    Profile,
    summary="a measured network: its topology, and how it was measured",
    documentation="adaptation.md",
    show="headrace.cli.tables:profile_tables",
    page="headrace.report.network_page:profile_page",
)
KINDS = (TOPOLOGY, PROFILE)
