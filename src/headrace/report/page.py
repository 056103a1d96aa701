"""One HTML page without anything outside it: texts, tables, figures, and plotly.js once."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from headrace.extras import require
from headrace.facades import offered_by

if TYPE_CHECKING:
    import plotly.graph_objects as go

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; margin: 2rem auto; max-width: 1180px;
  padding: 0 1rem; background: #fff; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
p.note { color: #5a6472; max-width: 60rem; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top; }
th { color: #5a6472; font-weight: 600; border-bottom: 1px solid #ccd3db; }
td { overflow-wrap: break-word; }
td.number, th.number { text-align: right; white-space: nowrap; }
.scroll { max-height: 32rem; overflow: auto; } .ok { color: #1a7f4b; } .short { color: #b3261e; }
"""

_LAYOUT = {
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1c2430"},
    "paper_bgcolor": "#fff",
    "plot_bgcolor": "#f7f9fb",
    "margin": {"l": 70, "r": 20, "t": 30, "b": 50},
    "hoverlabel": {"align": "left"},
}
_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "showLink": False,
    "showEditInChartStudio": False,
}

MAX_ROWS = 2000
"""Tables are cut to so many rows; the page says so."""


@offered_by("headrace.report")
class Page:
    """Collects sections in order; `html` returns the page."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        self._title = title
        self._body = [f"<h1>{escape(title)}</h1>"]
        self._figures = 0
        if subtitle:
            self.note(subtitle)

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._body.append(f"<h2>{escape(text)}</h2>")

    def note(self, text: str) -> None:
        """Add a paragraph, such as what a figure leaves out."""
        self._body.append(f'<p class="note">{escape(text)}</p>')

    def facts(self, rows: Iterable[tuple[str, str]]) -> None:
        """Add rows of (name, value)."""
        cells = "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
        self._body.append(f"<table>{cells}</table>")

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], marks: Sequence[str] = ()
    ) -> None:
        """Add a table; numbers stand right. `marks[i]` is the CSS class of row i."""
        every = [list(row) for row in rows]
        shown = every[:MAX_ROWS]
        right = [any(isinstance(row[i], int | float) for row in shown) for i in range(len(columns))]
        kinds = [' class="number"' if number else "" for number in right]
        head = "".join(f"<th{k}>{escape(c)}</th>" for k, c in zip(kinds, columns, strict=True))
        body: list[str] = []
        for index, row in enumerate(shown):
            mark = f' class="{escape(marks[index])}"' if index < len(marks) and marks[index] else ""
            cells = "".join(
                f"<td{k}>{escape(cell_text(cell))}</td>" for k, cell in zip(kinds, row, strict=True)
            )
            body.append(f"<tr{mark}>{cells}</tr>")
        self._body.append(
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(body)}</tbody></table></div>"
        )
        if len(every) > MAX_ROWS:
            self.note(f"{MAX_ROWS} of {len(every)} rows are shown.")

    def figure(self, figure: "go.Figure", height: int = 420) -> None:
        """Add a figure."""
        figure.update_layout({"height": height, **_LAYOUT})
        self._figures += 1
        name = f"figure-{self._figures}"
        content: dict[str, Any] = json.loads(str(figure.to_json()))
        arguments = ", ".join(
            _script_json(part) for part in (content["data"], content["layout"], _CONFIG)
        )
        self._body.append(
            f'<div id="{name}" class="figure" style="height:{height}px"></div>'
            f'<script>Plotly.newPlot("{name}", {arguments});</script>'
        )

    def html(self) -> str:
        """Return the page. It needs no network: scripts and styles are inside."""
        script = ""
        if self._figures:
            from plotly.offline import get_plotlyjs

            script = f"<script>{get_plotlyjs()}</script>"
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style>{script}</head>"
            f"<body>{''.join(self._body)}</body></html>\n"
        )


def empty_figure() -> "go.Figure":
    """Return a figure to draw in; raises InputError if Plotly is not installed."""
    require("plotly", "report", "a page with charts")
    import plotly.graph_objects as go

    return go.Figure()


def cell_text(value: object) -> str:
    """Return a cell as people read it: floats with four digits."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
