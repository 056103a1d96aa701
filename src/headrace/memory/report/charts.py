"""Charts of memory: over the steps of schedules, and time against it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.memory.graph import Graph
from headrace.memory.plan.plain import PlainStep
from headrace.memory.plan.tradeoff import Point
from headrace.memory.plan.verify import allocated_bytes
from headrace.memory.profile import EagerStep
from headrace.memory.schedule import Schedule
from headrace.report.page import empty_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_COLOURS = ("#7a8794", "#2f6fb0", "#1a7f4b")
_MIB = 1 << 20
MEASURED = "plain, measured"
"""Name of eager's step as measured."""


def memory_timeline(
    graph: Graph,
    schedules: Mapping[str, Schedule],
    budget_bytes: int | None = None,
    *,
    eager: EagerStep | None = None,
) -> "go.Figure":
    """Return predicted memory over the steps of schedules (Figure 4.3), beside some levels.

    Each schedule has a mark where its backward pass begins. The levels are what is resident, the
    budget, and the peak of eager's step as measured.
    """
    figure = empty_figure()
    longest = 0
    for (name, schedule), colour in zip(schedules.items(), _COLOURS, strict=False):
        replayed = [nbytes / _MIB for nbytes in allocated_bytes(graph, schedule)]
        names = [graph.operators[step.operator].place for step in schedule.steps]
        longest = max(longest, len(replayed))
        figure.add_scatter(
            x=list(range(len(replayed))),
            y=replayed,
            text=names,
            name=name,
            mode="lines",
            line={"shape": "hvh", "color": colour, "width": 1.5},
            hovertemplate="step %{x}: %{text}<br>%{y:.4g} MiB<extra></extra>",
        )
        turn = schedule.forward_steps
        if turn < len(replayed):
            figure.add_scatter(
                x=[turn],
                y=[replayed[turn]],
                name=f"backward of {name}",
                mode="markers",
                marker={"color": colour, "symbol": "triangle-left", "size": 11},
            )
    levels = {
        "resident": graph.resident_bytes,
        "budget": budget_bytes,
        MEASURED: None if eager is None else eager.peak_bytes,
    }
    for (name, count), dash in zip(levels.items(), ("dot", "dash", "longdash"), strict=True):
        if count is not None:
            figure.add_scatter(
                x=[0, max(longest - 1, 1)],
                y=[count / _MIB] * 2,
                name=name,
                mode="lines",
                line={"color": "#c62828" if name == "budget" else "#1c2430", "dash": dash},
            )
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title="step of the schedule")
    figure.update_yaxes(title="memory, MiB", rangemode="tozero")
    return figure


def tradeoff_chart(
    points: Sequence[Point], others: Sequence[Point], plain: PlainStep
) -> "go.Figure":
    """Return predicted times over memory (Figure 4.4), each as its overhead over plain's time.

    Parameters
    ----------
    points : joined by a line, with their bounds.
    others : by themselves, such as baselines.
    plain : has a mark if it is measured; its prediction is one of the others.
    """
    figure = empty_figure()

    def overhead(time_us: float) -> float:
        return 100 * (time_us / plain.time_us - 1) if plain.time_us else 0.0

    ordered = sorted(points, key=lambda point: point.peak_bytes)
    lines = {"planned": [(point, point.time_us) for point in ordered]}
    lines["bound"] = [(point, point.bound_us) for point in ordered if point.bound_us]
    for (name, rows), dash in zip(lines.items(), ("solid", "dash"), strict=True):
        if rows:
            figure.add_scatter(
                x=[point.peak_bytes / _MIB for point, _ in rows],
                y=[overhead(time_us) for _, time_us in rows],
                name=name,
                mode="lines+markers",
                line={"color": _COLOURS[1], "dash": dash, "width": 2 if dash == "solid" else 1},
            )
    for baseline, symbol in zip(others, ("circle", "diamond", "square", "star"), strict=False):
        figure.add_scatter(
            x=[baseline.peak_bytes / _MIB],
            y=[overhead(baseline.time_us)],
            name=baseline.name,
            mode="markers",
            marker={"color": _COLOURS[0], "symbol": symbol, "size": 11},
        )
    if plain.measured:
        figure.add_scatter(
            x=[plain.peak_bytes / _MIB],
            y=[0],
            name=MEASURED,
            mode="markers",
            marker={"color": _COLOURS[2], "symbol": "cross", "size": 11},
        )
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title="peak memory, MiB")
    basis = "eager's as measured" if plain.measured else "a plain run's as predicted"
    figure.update_yaxes(title=f"predicted time over {basis}, %")
    return figure
