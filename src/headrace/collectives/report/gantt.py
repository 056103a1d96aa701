"""The Gantt chart of a plan: a row for each link and shared capacity that is used."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.collectives.plan.plan import Plan
from headrace.collectives.report.timeline import Timeline, intervals, size_text
from headrace.report.page import empty_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_ROWS, MAX_BARS = 160, 12_000
"""Most rows (the busiest) and bars that are drawn; more bars of a row are joined."""

_COLOURS = {"sends": "#2f6fb0", "combined sends": "#d1752b", "shared capacities": "#7a8794"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gantt:
    """The chart, its height in pixels, and a note on parts left out (empty if none)."""

    figure: "go.Figure"
    height: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Row:
    name: str
    busy: float
    shared: bool
    start: np.ndarray
    finish: np.ndarray
    uses: np.ndarray


def gantt(plan: Plan, line: Timeline) -> Gantt:
    """Draw when every link and shared capacity is in use; one bar is one message."""
    every = _rows(plan, line)
    rows = sorted(every, key=lambda row: (-row.busy, row.name))[:MAX_ROWS]
    rows.sort(key=lambda row: (not row.shared, every.index(row)))
    bars_per_row = max(8, MAX_BARS // max(1, len(rows)))
    joined = 0
    bars: dict[str, list[tuple[str, float, float, str]]] = {kind: [] for kind in _COLOURS}
    for row in rows:
        groups = _joined(row.start, row.finish, bars_per_row)
        joined += len(row.start) - len(groups)
        for members in groups:
            kind = _kind(row, line, members)
            start, finish = float(row.start[members].min()), float(row.finish[members].max())
            bars[kind].append((row.name, start, finish - start, _hover(plan, row, line, members)))
    figure = empty_figure()
    for kind, colour in _COLOURS.items():
        if mine := bars[kind]:
            names, starts, lengths, texts = zip(*mine, strict=True)
            figure.add_bar(
                orientation="h",
                name=kind,
                y=list(names),
                base=list(starts),
                x=list(lengths),
                text=None,
                hovertext=list(texts),
                hoverinfo="text",
                marker={"color": colour, "line": {"width": 0.5, "color": "#fff"}},
            )
    names = [row.name for row in rows]
    figure.update_layout(
        barmode="overlay",
        bargap=0.15,
        xaxis={"title": "us", "range": [0, line.total_us * 1.01], "zeroline": False},
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names[::-1],
            "automargin": True,
            "dtick": 1,
        },
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )
    left_out = [
        f"the {len(rows)} busiest of {len(every)} links and capacities are drawn"
        if len(every) > len(rows)
        else "",
        f"{joined} bars were joined with a neighbour of their row" if joined else "",
    ]
    return Gantt(
        figure=figure,
        height=min(2600, 130 + 17 * len(rows)),
        note="; ".join(text for text in left_out if text),
    )


def _rows(plan: Plan, line: Timeline) -> list[_Row]:
    """Return shared capacities and links in use, capacities first, in the topology's order."""
    rows: list[_Row] = []
    for index, shared in enumerate(plan.topology.shared):
        uses, start, finish = intervals(plan, line, index)
        if len(uses):
            busy = float(line.shared_busy[index])
            rows.append(
                _Row(
                    name=shared.name, busy=busy, shared=True, start=start, finish=finish, uses=uses
                )
            )
    order = np.argsort(line.link, kind="stable")
    links, first = np.unique(line.link[order], return_index=True)
    for link, uses in zip(links.tolist(), np.split(order, first)[1:], strict=True):
        ends = plan.topology.links[link]
        rows.append(
            _Row(
                name=f"{ends.src} > {ends.dst}",
                busy=float(line.link_busy[link]),
                shared=False,
                start=line.start_us[uses],
                finish=line.finish_us[uses],
                uses=uses,
            )
        )
    return rows


def _joined(start: np.ndarray, finish: np.ndarray, most: int) -> list[np.ndarray]:
    """Split a row's messages, in order of time, into `most` groups at the largest gaps."""
    order = np.argsort(start, kind="stable")
    if len(order) <= most:
        return [order[index : index + 1] for index in range(len(order))]
    reached = np.maximum.accumulate(finish[order])
    gaps = start[order][1:] - reached[:-1]
    cuts = np.sort(np.argsort(-gaps, kind="stable")[: most - 1]) + 1
    return np.split(order, cuts)


def _kind(row: _Row, line: Timeline, members: np.ndarray) -> str:
    if row.shared:
        return "shared capacities"
    return "combined sends" if line.reduce[row.uses[members]].any() else "sends"


def _hover(plan: Plan, row: _Row, line: Timeline, members: np.ndarray) -> str:
    uses = row.uses[members]
    start, finish = row.start[members].min(), row.finish[members].max()
    when = f"{row.name}: {start:.2f} to {finish:.2f} us"
    if len(uses) > 1:
        return f"{when}<br>{len(uses)} messages, {size_text(plan, line.mb[uses].sum())}"
    use = int(uses[0])
    slots = line.slots[use] if len(line.slots[use]) <= 60 else f"{line.slots[use][:57]}..."
    return (
        f"{when}<br>message {line.message[use]}, {line.src[use]} > {line.dst[use]}, "
        f"{size_text(plan, line.mb[use])}<br>slots {slots}"
    )
