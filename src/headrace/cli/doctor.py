"""``headrace doctor``: which capabilities can run here, and what would mend the rest."""

from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

import typer

from headrace.cli.answers import result_of
from headrace.cli.console import tables_hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReadiness:
    """State of a stage: ready, or the names of missing checks; those that limit it."""

    ready: bool
    missing: list[str]
    limits: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingResult:
    """The finding of a check, and the command that mends it."""

    name: str
    status: str
    text: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisResult:
    """Stages by capability, and findings; ready if all that was asked about can run."""

    ready: bool
    capabilities: dict[str, dict[str, StageReadiness]]
    findings: list[FindingResult]

    @property
    def exit_code(self) -> int:
        """Of the command."""
        return 0 if self.ready else 1


def doctor_command(
    capability: Annotated[
        str | None,
        typer.Argument(help="A capability, or a verb such as demo; all if absent."),
    ] = None,
    stage: Annotated[
        str | None, typer.Argument(help="One stage of the capability, such as plan.")
    ] = None,
) -> DiagnosisResult:
    """Check what can run here, and name what is missing and the command that mends it.

    Nothing is changed. The exit code is 0 only if all that was asked about can run.

    Example: headrace doctor memory plan
    """
    from headrace.doctor.command import print_findings
    from headrace.doctor.diagnosis import diagnose

    diagnosis = diagnose(capability, stage)
    if not tables_hidden.get():
        print_findings(diagnosis)
    return DiagnosisResult(
        ready=diagnosis.ready,
        capabilities={
            name: {
                stage.stage: StageReadiness(
                    ready=not diagnosis.missing(stage),
                    missing=diagnosis.missing(stage),
                    limits=diagnosis.limits(stage),
                )
                for stage in stages
            }
            for name, stages in groupby(diagnosis.stages, key=lambda stage: stage.capability)
        },
        findings=[
            result_of(FindingResult, finding, status=finding.status.value)
            for finding in diagnosis.findings.values()
        ],
    )
