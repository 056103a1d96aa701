"""Notebooks (Jupyter): values as tables of HTML, and progress as one line below the cell.

IPython is a notebook's own: it is used where it is loaded, and never imported.
"""

import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from html import escape
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.artifact_value import ArtifactValue
from headrace.kinds import artifact_kinds

_EVERY_S = 0.2
"""Between two updates of a line: a solver may report thousands of states in a second."""

_PAGE_WIDTH = 100


def html_of_value(value: ArtifactValue) -> str:
    """Return the tables of a value that an artifact stores, as `headrace show` prints them."""
    kind = artifact_kinds()[value.KIND]
    tables = () if kind.show is None else kind.show(value, False)
    return f"<p>{escape(repr(value))}</p>{html_of(tables)}"


def html_of(parts: Iterable[RenderableType]) -> str:
    """Return tables, and the lines between them, as HTML."""
    return "".join(
        _table(part) if isinstance(part, Table) else f"<p>{escape(_text(part))}</p>"
        for part in parts
    )


@contextmanager
def progress_line(text: str) -> Generator[Callable[[str], None]]:
    """Show what is done while the block runs, beginning with `text`.

    On a terminal it is a spinner, which goes with the block. In a notebook it is a line below the
    cell, whose last text remains; no widgets are needed. Elsewhere nothing is written.

    Yields
    ------
    Callable
        Called with the present activity.
    """
    if not _in_notebook():
        with Console(stderr=True, force_jupyter=False).status(text) as status:
            yield status.update
        return
    line = _NotebookLine(text)
    try:
        yield line.update
    finally:
        line.write()


class _NotebookLine:
    """Output of a cell that is replaced, with the seconds since it began."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._began_s = self._written_s = time.monotonic()
        display: Any = sys.modules["IPython.display"].display
        self._handle = display(self._bundle(), raw=True, display_id=True)

    def update(self, text: str) -> None:
        """Take a text, and show it unless the last one was shown a moment ago."""
        self._text = text
        if time.monotonic() - self._written_s >= _EVERY_S:
            self.write()

    def write(self) -> None:
        """Show the last text."""
        self._written_s = time.monotonic()
        self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        return {"text/plain": f"{self._text} ({time.monotonic() - self._began_s:.0f} s)"}


def _in_notebook() -> bool:
    """Return whether this process is a notebook's kernel; IPython on a terminal is not."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _table(table: Table) -> str:
    title = "" if table.title is None else f"<caption>{escape(_text(table.title))}</caption>"
    styles = [f' style="text-align: {column.justify}"' for column in table.columns]
    header = ""
    if table.show_header:
        names = [escape(_text(column.header)) for column in table.columns]
        cells = "".join(f"<th{s}>{name}</th>" for s, name in zip(styles, names, strict=True))
        header = f"<thead><tr>{cells}</tr></thead>"
    columns = [[escape(_text(cell)) for cell in column.cells] for column in table.columns]
    lines = [
        "".join(f"<td{s}>{cell}</td>" for s, cell in zip(styles, row, strict=True))
        for row in zip(*columns, strict=True)
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{title}{header}<tbody>{body}</tbody></table>"


def _text(part: RenderableType) -> str:
    """Return a part as plain text: names of a file or model are no mark-up."""
    if isinstance(part, str):
        return part
    if isinstance(part, Text):
        return part.plain
    console = Console(file=StringIO(), width=_PAGE_WIDTH, record=True, force_jupyter=False)
    console.print(part, markup=False)
    return console.export_text().rstrip()
