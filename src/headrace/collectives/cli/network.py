"""Read the network of a command: a topology or a measured profile."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.console import terminal, text_of
from headrace.errors import ArtifactError, InputError
from headrace.kinds import load_known
from headrace.topology import Topology

if TYPE_CHECKING:
    from headrace.artifact import Artifact
    from headrace.collectives.measure import Profile


def read_network(path: Path) -> tuple[Topology, tuple[tuple[int, ...], ...] | None]:
    """Return the topology, and the groups of ranks if it was measured.

    Raises
    ------
    InputError : if the file holds something else.
    """
    return _network_of(_artifact_in(path), path)


def read_topology(path: Path) -> Topology:
    """Return the topology of ``--topology``: it may be that of a plan book, too.

    Raises
    ------
    InputError : if the file holds something else.
    """
    artifact = _artifact_in(path)
    if artifact.kind == "plan-book":
        from headrace.collectives.plan.book import PlanBook

        return PlanBook.from_artifact(artifact, str(path)).topology
    return _network_of(artifact, path)[0]


def _artifact_in(path: Path) -> "Artifact":
    try:
        return load_known(path)
    except ArtifactError as error:
        if not path.is_file():
            raise
        raise ArtifactError(
            f"{error}. Other tools' files become topologies by 'headrace topology import'"
        ) from error


def _network_of(
    artifact: "Artifact", path: Path
) -> tuple[Topology, tuple[tuple[int, ...], ...] | None]:
    if artifact.kind == "topology":
        return Topology.from_artifact(artifact, str(path)), None
    if artifact.kind == "profile":
        from headrace.collectives.measure import Profile
        from headrace.collectives.measure.embed.groups import aggregation_groups

        profile = Profile.from_artifact(artifact, str(path))
        _warn_if_old(profile, path)
        return profile.topology, aggregation_groups(profile)
    raise InputError(
        f"{path}: field 'kind' is {artifact.kind!r}, needs 'profile' "
        "(from 'headrace collectives measure') or 'topology'"
    )


def _warn_if_old(profile: "Profile", path: Path) -> None:
    now = time.time()
    if profile.expired(now):
        terminal(stderr=True).print(
            f"[yellow]warning:[/] {text_of(path)} was measured "
            f"{_age(now - profile.measured_at)} ago and is valid for "
            f"{_age(profile.valid_for_s)}; if the network may have changed, "
            "measure it again with 'headrace collectives measure'.",
            soft_wrap=True,
            highlight=False,
        )


def _age(seconds: float) -> str:
    for unit, unit_s in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} seconds"
