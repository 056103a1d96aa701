"""A topology drawn: ranks in circles by host, links as lines, a cut in red."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from headrace.report.page import empty_figure
from headrace.topology import Topology

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_LINES = 3000
"""Most pairs of ranks that are joined by lines; those across the cut come first."""

_RED, _GREY, _BLUE, _LIGHT = "#c62828", "#a9b4c0", "#2f6fb0", "#9fc1e3"


class Cut(Protocol):
    """A cut of a topology: the ranks of its sending side, and the indices of links across."""

    @property
    def ranks(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def links(self) -> tuple[int, ...]: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The figure, and a note on parts left out (empty if none)."""

    figure: "go.Figure"
    note: str


def draw_topology(
    topology: Topology, cut: Cut | None = None, busy: np.ndarray | None = None
) -> Drawing:
    """Draw `topology`; `busy` (by link) darkens what a plan uses, `cut` is drawn red."""
    at = _positions(topology.rank_host, len(topology.hosts))
    across = set(() if cut is None else cut.links)
    pairs: dict[tuple[int, int], list[int]] = {}
    for index, link in enumerate(topology.links):
        pairs.setdefault((min(link.src, link.dst), max(link.src, link.dst)), []).append(index)
    cutting = {pair for pair, links in pairs.items() if across.intersection(links)}
    ordered = sorted(pairs, key=lambda pair: (pair not in cutting, pair))
    used = {pair for pair in pairs if busy is not None and any(busy[i] > 0 for i in pairs[pair])}
    shown = ordered[:MAX_LINES]
    figure = empty_figure()
    for name, colour, width, drawn in (
        ("links", _GREY, 0.7, [p for p in shown if p not in cutting and p not in used]),
        ("links in use", _BLUE, 1.1, [p for p in shown if p not in cutting and p in used]),
        ("across the bottleneck cut", _RED, 2.0, [p for p in shown if p in cutting]),
    ):
        if drawn:
            _lines(figure, at, drawn, name, colour, width)
    _ranks(figure, topology, at, cut)
    note = ""
    if len(pairs) > len(shown):
        note = f"{len(shown)} of {len(pairs)} pairs of linked ranks are drawn"
    return Drawing(figure=figure, note=note)


def _positions(rank_host: Sequence[int], hosts: int) -> np.ndarray:
    """Return (ranks, 2): hosts on a grid, the ranks of each on a circle."""
    columns = int(np.ceil(np.sqrt(hosts)))
    home = np.array(rank_host)
    lone = len(home) == hosts  # a rank a host: one circle of all
    at = np.zeros((len(home), 2))
    for host in range(1 if lone else hosts):
        mine = np.arange(len(home)) if lone else np.flatnonzero(home == host)
        angle = 2 * np.pi * (np.arange(len(mine)) + 0.5) / max(1, len(mine))
        circle = 0.38 * np.stack([np.sin(angle), np.cos(angle)], axis=1)
        if len(mine) == 1:
            circle[:] = 0.0
        at[mine] = circle + np.array([host % columns, -(host // columns)])
    return at


def _lines(
    figure: "go.Figure",
    at: np.ndarray,
    pairs: Sequence[tuple[int, int]],
    name: str,
    colour: str,
    width: float,
) -> None:
    ends = at[np.array(pairs)]
    gap = np.full((len(pairs), 1), np.nan)
    x, y = (np.hstack([ends[:, :, axis], gap]).round(4).ravel() for axis in (0, 1))
    figure.add_scatter(
        x=x, y=y, mode="lines", name=name, line={"color": colour, "width": width}, hoverinfo="skip"
    )


def _ranks(figure: "go.Figure", topology: Topology, at: np.ndarray, cut: Cut | None) -> None:
    inside = set(() if cut is None else cut.ranks)
    few = topology.ranks <= 128
    figure.add_scatter(
        x=at[:, 0].round(4),
        y=at[:, 1].round(4),
        mode="markers+text" if few else "markers",
        name="ranks",
        text=[str(rank) for rank in range(topology.ranks)] if few else None,
        textfont={"size": 11, "color": "#fff"},
        marker={
            "size": 22 if few else 7,
            "color": [_RED if rank in inside else _BLUE for rank in range(topology.ranks)],
        },
        hovertext=[
            f"rank {rank} on {topology.hosts[host]}"
            + (", sending side of the cut" if rank in inside else "")
            for rank, host in enumerate(topology.rank_host)
        ],
        hoverinfo="text",
    )
    hidden = {"visible": False}
    figure.update_layout(
        xaxis=hidden,
        yaxis={**hidden, "scaleanchor": "x"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    )
