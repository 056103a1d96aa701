"""Artifact kinds of networks: topologies, measured profiles."""

from headrace.kinds import ArtifactKind, deferred
from headrace.topology import Topology
from headrace.topology.profile import Profile

KINDS = (
    ArtifactKind(
        name="topology",
        schema=1,
        summary="links and shared capacities of a network, with their costs",
        documentation="cost-model.md",
        load=lambda artifact, source: Topology.from_head(artifact.head, source),
        show=deferred("headrace.cli.tables:topology_tables"),
        page=deferred("headrace.report.network_page:topology_page"),
    ),
    ArtifactKind(
        name="profile",
        schema=2,
        summary="a measured network: its topology, and how it was measured",
        documentation="adaptation.md",
        load=Profile.from_artifact,
        show=deferred("headrace.cli.tables:profile_tables"),
        page=deferred("headrace.report.network_page:profile_page"),
    ),
)
