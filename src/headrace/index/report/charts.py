"""Charts of an index: trace image, ranks and gaps of keys, frontier, memory, leaves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.index.plan.frontier import pareto_front
from headrace.index.plan.plan import ConfigurationCandidate, IndexPlan
from headrace.index.profile import TraceEncoding
from headrace.index.tables import LEAVES
from headrace.report.page import empty_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_COLOURS = dict(zip(LEAVES, ("#7a8794", "#b3661e", "#2f6fb0", "#1a7f4b"), strict=True))
_SHOWN = 128
"""Pixels of either axis that are drawn: a page stays small."""


def image_chart(encoding: TraceEncoding) -> "go.Figure":
    """Return reads and writes over time (down) and key (to the right), side by side."""
    figure = empty_figure()
    for channel, name in enumerate(("reads", "writes")):
        figure.add_heatmap(
            z=_pooled(encoding.image[:, :, channel]),
            name=name,
            coloraxis="coloraxis",
            xaxis=f"x{channel + 1}" if channel else "x",
            yaxis=f"y{channel + 1}" if channel else "y",
            hovertemplate=f"{name}: log2(1 + operations) %{{z:.1f}}<extra></extra>",
        )
    figure.update_layout(
        xaxis={"domain": [0, 0.47], "title": "key (linear), reads"},
        xaxis2={"domain": [0.53, 1], "title": "key (linear), writes"},
        yaxis={"autorange": "reversed", "title": "time (part of the operations)"},
        yaxis2={"autorange": "reversed", "anchor": "x2", "title": "time (part of the operations)"},
        coloraxis={"colorscale": "Blues", "colorbar": {"title": "log2(1 + n)"}},
    )
    return figure


def _pooled(counts: np.ndarray) -> list[list[float]]:
    """Return log2(1 + counts) of pixels that are joined, with one decimal."""
    step = counts.shape[0] // _SHOWN
    joined = counts.astype(np.float64).reshape(_SHOWN, step, _SHOWN, step).sum(axis=(1, 3))
    return np.round(np.log2(1 + joined), 1).tolist()


def ranks_chart(encoding: TraceEncoding) -> "go.Figure":
    """Return the shares of reads and writes by the rank of their key."""
    figure = empty_figure()
    ranks = encoding.tables["ranks"]
    for name in ("reads", "writes"):
        figure.add_bar(
            x=[(place + 0.5) / len(ranks[name]) for place in range(len(ranks[name]))],
            y=(100 * ranks[name]).tolist(),
            name=name,
        )
    figure.update_layout(barmode="group", showlegend=True)
    figure.update_xaxes(title="rank of the key, as a share of all keys")
    figure.update_yaxes(title="operations, %")
    return figure


def gaps_chart(encoding: TraceEncoding) -> "go.Figure":
    """Return the distribution of distances to the next key."""
    figure = empty_figure()
    shares = encoding.tables["gaps"]["share"]
    figure.add_bar(x=list(range(len(shares))), y=(100 * shares).tolist(), name="gaps")
    figure.update_xaxes(title="distance to the next key, log2")
    figure.update_yaxes(title="keys, %")
    return figure


def frontier_chart(plan: IndexPlan) -> "go.Figure":
    """Return the time of an insert over that of a find, of each candidate, and the Pareto front."""
    figure = empty_figure()
    candidates = plan.candidates
    _points(
        figure,
        candidates,
        [candidate.read_ns for candidate in candidates],
        [candidate.write_ns for candidate in candidates],
    )
    front = pareto_front(
        [candidate.read_ns for candidate in candidates],
        [candidate.write_ns for candidate in candidates],
    )
    figure.add_scatter(
        x=[candidates[place].read_ns for place in front],
        y=[candidates[place].write_ns for place in front],
        name="Pareto front",
        mode="lines",
        line={"color": "#c62828", "shape": "hv", "width": 1.5},
    )
    _mark(figure, plan.chosen.read_ns, plan.chosen.write_ns)
    figure.update_xaxes(title="find, ns", type="log")
    figure.update_yaxes(title="insert, ns", type="log")
    return figure


def memory_chart(plan: IndexPlan) -> "go.Figure":
    """Return throughput over memory of each candidate, tried where it was, and the cap."""
    figure = empty_figure()
    candidates = plan.candidates
    rates = [candidate.per_s / 1e6 for candidate in candidates]
    _points(figure, candidates, [candidate.bytes_per_key for candidate in candidates], rates)
    _mark(figure, plan.chosen.bytes_per_key, plan.chosen.per_s / 1e6)
    if plan.most_bytes_per_key is not None:
        figure.add_scatter(
            x=[plan.most_bytes_per_key] * 2,
            y=[0, max(rates)],
            name="cap",
            mode="lines",
            line={"color": "#c62828", "dash": "dash"},
        )
    figure.update_xaxes(title="bytes per key")
    figure.update_yaxes(title="M operations/s", rangemode="tozero")
    return figure


def leaves_chart(tried: Sequence[ConfigurationCandidate]) -> "go.Figure":
    """Return the leaves of each type at the end of the trials."""
    figure = empty_figure()
    for kind, name in enumerate(LEAVES):
        counts = [candidate.leaves[kind] for candidate in tried]
        if any(counts):
            figure.add_bar(
                x=[candidate.configuration.name for candidate in tried],
                y=counts,
                name=name,
                marker={"color": _COLOURS[name]},
            )
    figure.update_layout(barmode="stack", showlegend=True)
    figure.update_xaxes(title="candidate")
    figure.update_yaxes(title="leaves")
    return figure


def _points(
    figure: "go.Figure",
    candidates: Sequence[ConfigurationCandidate],
    x: Sequence[float],
    y: Sequence[float],
) -> None:
    """Add the candidates of each type, filled where they were tried."""
    for name in LEAVES:
        places = [
            p for p, candidate in enumerate(candidates) if candidate.configuration.leaf == name
        ]
        if places:
            figure.add_scatter(
                x=[x[place] for place in places],
                y=[y[place] for place in places],
                text=[candidates[place].configuration.name for place in places],
                name=name,
                mode="markers",
                marker={
                    "color": _COLOURS[name],
                    "size": 9,
                    "symbol": ["circle" if candidates[p].trials else "circle-open" for p in places],
                },
                hovertemplate="%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
            )
    figure.update_layout(showlegend=True)


def _mark(figure: "go.Figure", x: float, y: float) -> None:
    figure.add_scatter(
        x=[x],
        y=[y],
        name="chosen",
        mode="markers",
        marker={"symbol": "star", "size": 16, "color": "#c62828"},
    )
