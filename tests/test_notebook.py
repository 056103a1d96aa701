"""Output in notebooks: tables of values, and a line of progress."""

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from headrace import notebook
from headrace.artifact_value import ArtifactValue
from headrace.kinds import artifact_kinds, load_artifact
from headrace.notebook import html_of, progress_line
from tests.old_files_test import WRITTEN


def test_every_kind_of_value_is_shown_as_tables() -> None:
    shown: set[str] = set()
    for path in sorted(WRITTEN.glob("*.headrace")):
        artifact = load_artifact(path)
        kind = artifact_kinds()[artifact.kind]
        value = kind.load(artifact, str(path))
        if isinstance(value, ArtifactValue):
            html = value._repr_html_()
            assert html.startswith(f"<p>&lt;{type(value).__name__}: "), path
            assert ("<table><caption>" in html) == (kind.show is not None), path
            shown.add(artifact.kind)
    assert len(shown) >= 9, shown


def test_names_are_no_markup() -> None:
    table = Table(title="a <b>")
    table.add_column("name")
    table.add_column("[bold]", justify="right")
    table.add_row("<script>", Text("[red]&"))
    assert html_of([table, "1 < 2"]) == (
        "<table><caption>a &lt;b&gt;</caption>"
        '<thead><tr><th style="text-align: left">name</th>'
        '<th style="text-align: right">[bold]</th></tr></thead>'
        '<tbody><tr><td style="text-align: left">&lt;script&gt;</td>'
        '<td style="text-align: right">[red]&amp;</td></tr></tbody></table>'
        "<p>1 &lt; 2</p>"
    )


class Displayed:
    """IPython's display of a cell, and the handle that it returns."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> "Displayed":
        assert raw
        assert display_id
        self.update(bundle, raw=raw)
        return self

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.texts.append(bundle["text/plain"])


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Displayed:
    shown = Displayed()
    shell = SimpleNamespace(kernel=object())
    ipython: Any = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)  # type: ignore[arg-type]
    return shown


def test_a_notebook_has_a_line_that_ends_with_the_last_text(
    cell: Displayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spinner needs a package of widgets there, and warned where it was not installed."""
    now_s = 0.0
    monkeypatch.setattr(notebook.time, "monotonic", lambda: now_s)
    with progress_line("planning") as report:
        report("too soon to be shown")
        now_s = 3.0
        report("gap 5%")
        report("gap 1%")
    assert cell.texts == ["planning (0 s)", "gap 5% (3 s)", "gap 1% (3 s)"]


def test_an_error_leaves_the_line_as_it_was(cell: Displayed) -> None:
    def fail() -> None:
        with progress_line("planning") as report:
            report("gap 5%")
            raise ValueError("no plan")

    with pytest.raises(ValueError, match="no plan"):
        fail()
    assert cell.texts[-1].startswith("gap 5% (")


def test_nothing_is_written_where_there_is_neither_terminal_nor_notebook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with progress_line("planning") as report:
        report("gap 5%")
    assert not stream.getvalue().strip()
