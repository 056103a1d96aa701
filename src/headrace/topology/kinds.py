"""Artifact kinds of networks: topologies, measured profiles."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.artifact import Artifact
from headrace.kinds import ArtifactKind
from headrace.topology import Topology
from headrace.topology.profile import Profile

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.report.page import Page


def _load_topology(artifact: Artifact, source: str) -> Topology:
    return Topology.from_head(artifact.head, source)


def _show_topology(topology: Topology, everything: bool) -> "Iterable[RenderableType]":
    from headrace.cli.tables import topology_tables

    return topology_tables(topology, everything)


def _show_profile(profile: Profile, everything: bool) -> "Iterable[RenderableType]":
    from headrace.cli.tables import facts, topology_tables

    yield facts("profile", dict(profile.summary()), everything=everything)
    yield from topology_tables(profile.topology, everything)


def _page_of_topology(topology: Topology, source: str) -> "Page":
    from headrace.report.network_page import topology_page

    return topology_page(topology, source)


def _page_of_profile(profile: Profile, source: str) -> "Page":
    from headrace.report.network_page import profile_page

    return profile_page(profile, source)


KINDS = (
    ArtifactKind(
        name="topology",
        schema=1,
        summary="links and shared capacities of a network, with their costs",
        documentation="cost-model.md",
        load=_load_topology,
        show=_show_topology,
        page=_page_of_topology,
    ),
    ArtifactKind(
        name="profile",
        schema=2,
        summary="a measured network: its topology, and how it was measured",
        documentation="adaptation.md",
        load=Profile.from_artifact,
        show=_show_profile,
        page=_page_of_profile,
    ),
)
