"""``headrace show`` and ``headrace verify``: print any artifact, prove any plan again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from headrace.artifact import Artifact
from headrace.cli.answers import result_of
from headrace.cli.console import tables_hidden, terminal
from headrace.cli.options import flag
from headrace.cli.tables import facts, rows
from headrace.errors import InputError
from headrace.kinds import (
    artifact_kinds,
    foreign_format_of,
    foreign_formats,
    function_of,
    kind_names,
    load_artifact,
    load_known,
    require_fields,
)
from headrace.report.changes import COLUMNS, UNCHANGED, ArtifactChange, changes_between
from headrace.report.provenance import labelled_rows
from headrace.report.results import result_tables, stored_result

_Artifact = Annotated[
    Path,
    typer.Argument(
        help=f"An artifact ({kind_names()}), or a benchmark's result.",
        metavar="FILE",
    ),
]
_Provable = Annotated[
    Path,
    typer.Argument(
        help=f"An artifact with a proof ({kind_names(lambda kind: kind.verify)}), or "
        f"{', '.join(form.name for form in foreign_formats())} of any tool.",
        metavar="FILE",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactResult:
    """An artifact: its head, and tables by columns."""

    kind: str
    schema: int
    digest: str
    provenance: dict[str, Any]
    head: dict[str, Any]
    tables: dict[str, dict[str, list[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowResult:
    """An artifact, a benchmark's stored result, or the changes between two artifacts."""

    artifact: ArtifactResult | None
    benchmark: dict[str, Any] | None
    changes: list[ArtifactChange] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """A proof: the lines that say what was proven."""

    file: str
    lines: list[str]


def show_command(
    file: _Artifact,
    after: Annotated[
        Path | None,
        typer.Argument(help="Another of its kind: print what changed.", metavar="AFTER"),
    ] = None,
    everything: Annotated[bool, flag("--all", "Print every row, however many there are.")] = False,
) -> ShowResult:
    """Print an artifact: a profile, a plan or a topology, of any capability.

    A benchmark's stored result is printed, too. Of two artifacts of a kind, the changes from the
    first to the second are printed.

    Example: headrace show cluster.topology
    """
    console = terminal(markup=False)  # a file's names are no mark-up
    if after is not None:
        changes = changes_between(file, after)
        for table in _change_tables(f"{file} -> {after}", changes, everything):
            console.print(table)
        return ShowResult(artifact=None, benchmark=None, changes=changes)
    if (result := stored_result(file)) is not None:
        for table in result_tables(result, str(file), everything):
            console.print(table)
        return ShowResult(artifact=None, benchmark=dict(result), changes=None)
    artifact = load_artifact(file)
    named = {"kind": f"{artifact.kind} (schema {artifact.schema})", "digest": artifact.digest}
    console.print(facts(str(file), named))
    kind = artifact_kinds().get(artifact.kind)
    if kind is None or kind.show is None:
        console.print(facts("content", _head(artifact)))
    else:
        for table in kind.show(kind.load(artifact, str(file)), everything):
            console.print(table)
    if artifact.provenance:
        console.print(facts("provenance", dict(labelled_rows(artifact.provenance))))
    return ShowResult(artifact=_artifact_result(artifact), benchmark=None, changes=None)


def _artifact_result(artifact: Artifact) -> ArtifactResult:
    """Return an artifact's content; columns become lists only where they are printed."""
    tables = artifact.tables if tables_hidden.get() else {}
    return result_of(
        ArtifactResult,
        artifact,
        provenance=dict(artifact.provenance),
        head=dict(artifact.head),
        tables={
            name: {column: values.tolist() for column, values in table.items()}
            for name, table in tables.items()
        },
    )


def _change_tables(
    title: str, changes: Sequence[ArtifactChange], everything: bool
) -> Iterator[RenderableType]:
    if changes:
        cells = [change.cells() for change in changes]
        yield from rows(title, COLUMNS, cells, everything=everything)
    else:
        yield UNCHANGED


def verify_command(file: _Provable) -> VerifyResult:
    """Prove a plan of any capability again, or a file of another tool.

    Example: headrace verify best.plan
    """
    console = terminal(soft_wrap=True)
    lines: list[str] = []
    for line in _verified(file):
        console.print(line, markup=False, highlight=False)
        lines.append(line)
    return VerifyResult(file=str(file), lines=lines)


def _verified(file: Path) -> Iterator[str]:
    form = foreign_format_of(file)
    if form is None:
        artifact = load_known(file)
        needs = "needs one of {}: other kinds hold no program to verify"
        verify = function_of(artifact, str(file), lambda kind: kind.verify, needs)
        yield from verify(artifact, str(file))
        return
    require_fields(file, form)
    try:
        yield from form.verify(file)
    except InputError as error:
        raise InputError(
            f"{error} (read as {form.name}, as it begins with '{form.begins}' and is no "
            "headrace artifact)"
        ) from error


def _head(artifact: Artifact) -> dict[str, str]:
    sizes = {
        f"table {name}": f"{len(next(iter(table.values()), ()))} rows of {', '.join(table)}"
        for name, table in artifact.tables.items()
    }
    return {**dict(labelled_rows(artifact.head)), **sizes}
