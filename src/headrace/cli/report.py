"""``headrace report``: one HTML page from any artifact or benchmark result."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import headrace.artifact as artifact_io
from headrace.cli.answers import WrittenFile
from headrace.cli.console import terminal, text_of
from headrace.cli.options import output_option
from headrace.kinds import kind_names
from headrace.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class PageResult:
    """The page that was written."""

    file: WrittenFile


def report_command(
    file: Annotated[
        Path,
        typer.Argument(
            help=f"An artifact with a page ({kind_names(lambda kind: kind.page)}), or the result "
            "of a benchmark.",
            metavar="FILE",
        ),
    ],
    output: Annotated[Path, output_option("File to write: the page (HTML).")],
    after: Annotated[
        Path | None,
        typer.Argument(help="Another of its kind: draw what changed.", metavar="AFTER"),
    ] = None,
) -> PageResult:
    """Draw an artifact or a benchmark's result as one HTML page that needs no network.

    A plan's page has its certificate, its figures and what it was chosen from, and charts of what
    it moves or stores over time; a profile's has what was measured.
    Of two artifacts of a kind the page has the changes from the first to the second.

    Example: headrace report best.plan -o plan.html
    """
    from headrace.report.changes import changes_page
    from headrace.report.pages import page_of

    page = page_of(file) if after is None else changes_page(file, after)
    text = page.html().encode(errors="backslashreplace")  # names of files may be of any bytes
    artifact_io.write_file(output, text)
    terminal().print(f"Wrote [bold]{text_of(output)}[/] ({size(len(text))}).", soft_wrap=True)
    return PageResult(file=WrittenFile.at(output))
