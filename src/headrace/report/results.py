"""Results that benchmarks store (`benchmarks/harness.py`): recognised, and as printed tables."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import fields
from headrace.errors import ArtifactError
from headrace.fields import Field
from headrace.files import refuse_pipe

if TYPE_CHECKING:
    from rich.console import RenderableType


def stored_result(path: Path) -> Mapping[str, Any] | None:
    """Return the result that a benchmark stored; None if the file is no plain JSON object."""
    refuse_pipe(path, ArtifactError)  # what is no result is read again
    try:
        with path.open("rb") as file:
            start = file.read(4096)
            if not start.lstrip().startswith(b"{") or b'"headrace-artifact"' in start:
                return None
            document: Any = json.loads(start + file.read())
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and "claim" in document else None  # pyright: ignore


def result_tables(
    result: Mapping[str, Any], source: str, everything: bool
) -> "Iterator[RenderableType]":
    """Return a result as tables: when and where, its bars, and the rows of each section.

    Raises
    ------
    ArtifactError : naming the field that is missing or mistyped.
    """
    from headrace.cli.tables import facts, rows
    from headrace.report.page import cell_text

    document = Field(result, source, ArtifactError)
    named = {
        name: cell_text(result[name])
        for name in ("started", "quick", "commit", "took_s")
        if name in result
    }
    yield facts(f"benchmark {document.at('claim').text()}", named, everything=everything)
    bars = [_bar(bar) for bar in document.at("bars").items()]
    yield from rows("bars", ("name", "figure", "required", "verdict"), bars, everything=everything)
    sections = document.at("tables")
    for name in sections.read(fields.table):
        lines = [row.read(fields.table) for row in sections.at(name).items()]
        columns = list(dict.fromkeys(column for line in lines for column in line))
        cells = [[cell_text(line.get(column)) for column in columns] for line in lines]
        yield from rows(name, columns, cells, everything=everything)


def _bar(bar: Field) -> tuple[str, str, str, str]:
    figure, skipped = bar.at("figure").found, bar.at("skipped", default=False).found
    verdict = "ok" if bar.at("ok").found else "skipped" if skipped else "SHORT"
    shown = "unmeasured" if figure is None else f"{bar.at('figure').read(fields.number):.4g}"
    return bar.at("name").text(), shown, bar.at("required").text(), verdict
