"""``headrace report``: one HTML page from any artifact or benchmark result."""

from pathlib import Path
from typing import Annotated

import typer

import headrace.artifact as artifact_io
from headrace.cli.console import terminal, text_of
from headrace.cli.options import output_option
from headrace.units import size


def report_command(
    file: Annotated[
        Path,
        typer.Argument(
            help="A plan, plan book, topology or profile, or a benchmark's result.", metavar="FILE"
        ),
    ],
    output: Annotated[Path, output_option("File for the page (HTML).")],
) -> None:
    """Draw a plan, book, network or benchmark result as one HTML page that needs no network.

    A plan's page has its certificate, a Gantt chart of links and shared capacities, the topology
    with its bottleneck cut, and the candidates; a book's has algorithm bandwidth by size.
    """
    from headrace.report.pages import page_of

    text = page_of(file).html().encode()
    artifact_io.write_file(output, text)
    terminal().print(f"Wrote [bold]{text_of(output)}[/] ({size(len(text))}).", soft_wrap=True)
