"""The page of a benchmark's stored result: its bars, its tables, and curves where sizes vary."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace import fields
from headrace.errors import ArtifactError, InputError
from headrace.report.curves import Points, curves
from headrace.report.page import Page, cell_text, empty_figure
from headrace.units import parse_size

if TYPE_CHECKING:
    import plotly.graph_objects as go

_RATES = ("_per_s", "_us", "_ms", "_s", "gap", "bandwidth")
_MOST_LINES = 24

TableRows = Sequence[Mapping[str, Any]]


def benchmark_page(result: Mapping[str, Any], source: str) -> Page:
    """Return the page of a result as `benchmarks/harness.py` stores it.

    Raises
    ------
    ArtifactError : if a field is missing or mistyped.
    """
    try:
        claim = fields.text(result["claim"])
        bars = [fields.table(bar) for bar in fields.items(result["bars"])]
        tables = {
            str(name): [fields.table(row) for row in fields.items(rows)]
            for name, rows in fields.table(result["tables"]).items()
        }
        notes = [fields.text(note) for note in fields.items(result.get("notes", ()))]
        quick = " A quick run." if result.get("quick") else ""
        page = Page(f"Benchmark {claim}", f"{source}: {result.get('started', '')}.{quick}")
        _bars(page, bars)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{source}: is no benchmark result, needs claim, bars [name, figure, required, ok], "
            f"tables and notes: {error!r}"
        ) from error
    for note in notes:
        page.note(note)
    for name, rows in tables.items():
        page.heading(name)
        for figure in _curves(rows):
            page.figure(figure)
        columns = list(dict.fromkeys(str(column) for row in rows for column in row))
        page.table(columns, [[row.get(column) for column in columns] for row in rows])
    page.heading("Where and with what")
    for part in ("machine", "versions"):
        if isinstance(result.get(part), Mapping):
            page.facts([(str(k), cell_text(v)) for k, v in fields.table(result[part]).items()])
    page.facts([(name, str(result[name])) for name in ("commit", "took_s") if name in result])
    return page


def _bars(page: Page, bars: TableRows) -> None:
    if not bars:
        return
    page.heading("Bars")
    rows: list[tuple[str, object, str, str]] = []
    shown: list[tuple[str, float, bool]] = []
    for bar in bars:
        name, required = fields.text(bar["name"]), fields.text(bar["required"])
        figure = None if bar["figure"] is None else fields.number(bar["figure"])
        ok = bool(bar["ok"])
        verdict = "ok" if ok else "skipped" if bar.get("skipped") else "SHORT"
        rows.append((name, "unmeasured" if figure is None else figure, required, verdict))
        limit = _limit(required)
        if figure is not None and limit:
            shown.append((name, figure / limit, ok))
    if shown:
        page.note(
            "Figures over what is required: at least 1 where it is a floor, at most 1 where "
            "it is a ceiling."
        )
        page.figure(_bar_chart(shown), min(1600, 120 + 22 * len(shown)))
    marks = [{"ok": "ok", "SHORT": "short"}.get(verdict, "") for *_, verdict in rows]
    page.table(("bar", "figure", "required", ""), rows, marks)


def _limit(required: str) -> float:
    match = re.fullmatch(r"(?:>=|<=)\s*([0-9.eE+-]+)", required)
    return float(match[1]) if match else 0.0


def _bar_chart(shown: Sequence[tuple[str, float, bool]]) -> "go.Figure":
    figure = empty_figure()
    figure.add_bar(
        orientation="h",
        y=[name for name, _, _ in shown],
        x=[ratio for _, ratio, _ in shown],
        marker={"color": ["#1a7f4b" if ok else "#b3261e" for _, _, ok in shown]},
        hovertemplate="%{y}: %{x:.4g} of what is required<extra></extra>",
    )
    figure.add_vline(x=1.0, line={"color": "#1c2430", "dash": "dash", "width": 1})
    figure.update_layout(
        yaxis={"type": "category", "autorange": "reversed", "automargin": True, "dtick": 1},
        xaxis={"title": "figure / required"},
    )
    return figure


def _curves(rows: TableRows) -> list["go.Figure"]:
    """Figures of a table with a column of sizes: one for each kind of rate or time."""
    sizes = [_bytes(row.get("size", row.get("bytes"))) for row in rows]
    present = [size for size in sizes if size is not None]
    if len(set(present)) < 3:
        return []
    names = list(dict.fromkeys(column for row in rows for column in row))
    figures: list[go.Figure] = []
    for column in names:
        if not column.endswith(_RATES) or column in ("size", "bytes"):
            continue
        lines: dict[str, list[tuple[float, float]]] = {}
        for row, size in zip(rows, sizes, strict=True):
            value = row.get(column)
            if size is None or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if value > 0:
                lines.setdefault(_series(row), []).append((float(size), float(value)))
        drawn: dict[str, Points] = {k: sorted(v) for k, v in lines.items() if len(v) > 1}
        if 0 < len(drawn) <= _MOST_LINES:
            figures.append(curves(drawn, x="size", y=column.replace("_", " "), by_size=True))
    return figures


def _series(row: Mapping[str, Any]) -> str:
    texts = [str(v) for k, v in row.items() if isinstance(v, str) and k not in ("size", "note")]
    return " ".join(texts) or "all"


def _bytes(cell: Any) -> int | None:
    if isinstance(cell, bool) or cell is None:
        return None
    if isinstance(cell, int | float):
        return int(cell) if 0 < cell < math.inf else None
    try:
        return parse_size(str(cell)) or None
    except InputError:
        return None
