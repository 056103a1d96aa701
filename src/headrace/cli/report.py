"""``headrace report``: one HTML page from any artifact or benchmark result."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import headrace.artifact as artifact_io
from headrace.cli.format import size
from headrace.errors import ArtifactError


def report(
    file: Annotated[
        Path,
        typer.Argument(
            help="A plan, plan book, topology or profile, or a benchmark's result.", metavar="FILE"
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the page (HTML).")],
) -> None:
    """Draw a plan, book, network or benchmark result as one HTML page that needs no network.

    A plan's page has its certificate, a Gantt chart of links and shared capacities, the topology
    with its bottleneck cut, and what the portfolio got; a book's has algorithm bandwidth by size.
    """
    from headrace.report.pages import page_of

    if output.resolve() == file.resolve():
        raise ArtifactError(f"{output}: is the file to draw, needs another name")
    artifact_io.check_target(output)
    text = page_of(file).html().encode()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(text)
    except OSError as error:
        raise ArtifactError(f"{output}: cannot be written: {error.strerror}") from error
    Console().print(f"Wrote [bold]{output}[/] ({size(len(text))}).", soft_wrap=True)
