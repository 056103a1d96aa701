"""Artifact kinds of collectives, and the formats of other runtimes that are checked."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.artifact import Artifact
from headrace.kinds import ArtifactKind, ForeignFormat

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.collectives.measure.pcie.probes import HardwareProbes
    from headrace.collectives.plan.book import PlanBook
    from headrace.collectives.plan.generators.orbits import OrbitPlan
    from headrace.collectives.plan.plan import Plan
    from headrace.collectives.program import Program
    from headrace.report.page import Page


def _load_plan(artifact: Artifact, source: str) -> "Plan":
    from headrace.collectives.plan.plan import Plan

    return Plan.from_artifact(artifact, source)


def _load_book(artifact: Artifact, source: str) -> "PlanBook":
    from headrace.collectives.plan.book import PlanBook

    return PlanBook.from_artifact(artifact, source)


def _load_program(artifact: Artifact, source: str) -> "Program":
    from headrace.collectives.program import Program

    return Program.from_artifact(artifact, source)


def _load_orbit_plan(artifact: Artifact, source: str) -> "OrbitPlan":
    from headrace.collectives.plan.generators.orbits import OrbitPlan

    return OrbitPlan.from_artifact(artifact, source)


def _load_probes(artifact: Artifact, _source: str) -> "HardwareProbes":
    from headrace.collectives.measure.pcie.probes import recorded_probes

    return recorded_probes(artifact)


def _show_plan(plan: "Plan", everything: bool) -> "Iterable[RenderableType]":
    from headrace.collectives.cli.show import show_plan

    return show_plan(plan, everything)


def _show_book(book: "PlanBook", everything: bool) -> "Iterable[RenderableType]":
    from headrace.collectives.cli.show import show_book

    return show_book(book, everything)


def _verify_plan(artifact: Artifact, source: str) -> Iterator[str]:
    from headrace.collectives.cli.show import verify_plan

    return verify_plan(artifact, source)


def _verify_book(artifact: Artifact, source: str) -> Iterator[str]:
    from headrace.collectives.cli.show import verify_book

    return verify_book(artifact, source)


def _verify_program(artifact: Artifact, source: str) -> Iterator[str]:
    from headrace.collectives.cli.show import verify_program

    return verify_program(artifact, source)


def _verify_orbit_plan(artifact: Artifact, source: str) -> Iterator[str]:
    from headrace.collectives.cli.show import verify_orbit_plan

    return verify_orbit_plan(artifact, source)


def _page_of_plan(plan: "Plan", source: str) -> "Page":
    from headrace.collectives.report.plan_page import plan_page

    return plan_page(plan, source)


def _page_of_book(book: "PlanBook", source: str) -> "Page":
    from headrace.collectives.report.book_page import book_page

    return book_page(book, source)


def _verify_msccl(file: Path) -> Iterator[str]:
    from headrace.collectives.cli.export import findings
    from headrace.collectives.export import msccl_xml

    return findings(file, msccl_xml.verify_file(file))


def _verify_mscclpp(file: Path) -> Iterator[str]:
    from headrace.collectives.cli.export import findings
    from headrace.collectives.export import mscclpp_read

    return findings(file, mscclpp_read.verify_file(file))


KINDS = (
    ArtifactKind(
        name="plan",
        schema=2,
        summary="a proven program for one collective and size, with its bound and candidates",
        documentation="plan-format.md",
        load=_load_plan,
        show=_show_plan,
        verify=_verify_plan,
        page=_page_of_plan,
    ),
    ArtifactKind(
        name="plan-book",
        schema=2,
        summary="proven programs for every collective and size on one network",
        documentation="plan-format.md",
        load=_load_book,
        show=_show_book,
        verify=_verify_book,
        page=_page_of_book,
    ),
    ArtifactKind(
        name="orbit-plan",
        schema=1,
        summary="one rank's sends, and the symmetries that map them to all ranks",
        documentation="plan-format.md",
        load=_load_orbit_plan,
        verify=_verify_orbit_plan,
    ),
    ArtifactKind(
        name="program",
        schema=2,
        summary="lanes, steps and dependencies of one collective",
        documentation="plan-format.md",
        load=_load_program,
        verify=_verify_program,
    ),
    ArtifactKind(
        name="hardware-probes",
        schema=1,
        summary="recorded probes of one box's PCIe hardware",
        documentation="adaptation.md",
        load=_load_probes,
    ),
)

FORMATS = (
    ForeignFormat(name="MSCCL XML", begins="<", verify=_verify_msccl),
    ForeignFormat(name="MSCCL++ JSON", begins="{", verify=_verify_mscclpp),
)
