"""The text and JSON of ``headrace doctor``, and its command line where Typer is missing."""

import argparse
import json
import sys
from collections.abc import Iterator

from headrace.doctor.diagnosis import Diagnosis, diagnose
from headrace.doctor.finding import Status
from headrace.errors import InputError


def run(capability: str | None, stage: str | None, *, as_json: bool) -> int:
    """Diagnose, print to standard output, and return the exit code: 0 if what was asked can run."""
    diagnosis = diagnose(capability, stage)
    if as_json:
        document = {"verb": "doctor", "version": 1, "result": diagnosis.to_json()}
        sys.stdout.write(f"{json.dumps(document)}\n")
    else:
        print_findings(diagnosis)
    return 0 if diagnosis.ready else 1


def print_findings(diagnosis: Diagnosis) -> None:
    """Print a diagnosis to standard output, as text."""
    lines = [*_finding_lines(diagnosis), "", *_stage_lines(diagnosis)]
    sys.stdout.write("\n".join(lines) + "\n")


def run_plainly(arguments: list[str]) -> int:
    """Run the command as `headrace.cli` would, by the standard library alone."""
    parser = argparse.ArgumentParser(prog="headrace doctor")
    parser.add_argument("capability", nargs="?")
    parser.add_argument("stage", nargs="?")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        return run(options.capability, options.stage, as_json=options.json)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _finding_lines(diagnosis: Diagnosis) -> Iterator[str]:
    width = max(map(len, diagnosis.findings))
    for finding in diagnosis.findings.values():
        yield f"{finding.status.value:<7}  {finding.name:<{width}}  {finding.text}"
        if finding.remedy and finding.status is not Status.OK:
            yield f"{'':<7}  {'':<{width}}  mend: {finding.remedy}"


def _stage_lines(diagnosis: Diagnosis) -> Iterator[str]:
    names = [f"{stage.capability} {stage.stage}" for stage in diagnosis.stages]
    width = max(map(len, names))
    for name, stage in zip(names, diagnosis.stages, strict=True):
        missing, limits = diagnosis.missing(stage), diagnosis.limits(stage)
        verdict = f"cannot run: {', '.join(missing)}" if missing else "can run"
        limited = f" (limited: {', '.join(limits)})" if limits and not missing else ""
        yield f"{name:<{width}}  {verdict}{limited}"
    yield "Ready." if diagnosis.ready else "Not ready: see 'mend' above."
