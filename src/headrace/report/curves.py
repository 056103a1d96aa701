"""Curves over the size of the data: figures such as 5.6 to 5.8 of the dissertation on TACCL."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.report.page import empty_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

Points = Sequence[tuple[float, float]]
"""(x, y), ascending in x."""

_COLOURS = (
    "#2f6fb0",
    "#d1752b",
    "#1a7f4b",
    "#8e44ad",
    "#c62828",
    "#00838f",
    "#7a8794",
    "#b8860b",
    "#5d4037",
    "#ad1457",
)


def curves(
    lines: Mapping[str, Points],
    *,
    x: str,
    y: str,
    by_size: bool = False,
    emphasised: Sequence[str] = (),
    dashed: Sequence[str] = (),
) -> "go.Figure":
    """Draw lines on logarithmic axes; with `by_size` x is in bytes, with ticks in KiB and MiB."""
    figure = empty_figure()
    lines = {name: points for name, points in lines.items() if points}  # else a name alone
    for index, (name, points) in enumerate(lines.items()):
        figure.add_scatter(
            x=[point[0] for point in points],
            y=[point[1] for point in points],
            name=name,
            mode="lines+markers" if name not in dashed else "lines",
            line={
                "color": "#1c2430" if name in dashed else _COLOURS[index % len(_COLOURS)],
                "width": 3 if name in emphasised else 1.5,
                "dash": "dash" if name in dashed else "solid",
            },
            hovertemplate=f"{name}<br>%{{y:.4g}}<extra></extra>",
        )
    xaxis: dict[str, object] = {"title": x, "type": "log"}
    if by_size:
        values = [point[0] for points in lines.values() for point in points]
        xaxis |= size_ticks(values)
    figure.update_layout(
        xaxis=xaxis, yaxis={"title": y, "type": "log", "exponentformat": "power"}, hovermode="x"
    )
    return figure


def size_ticks(sizes: Sequence[float]) -> dict[str, object]:
    """Ticks of a logarithmic axis at powers of four bytes, in words."""
    from headrace.units import size

    low, high = min(sizes, default=1.0), max(sizes, default=1.0)
    ticks = [4**k for k in range(32) if low / 4 < 4**k < high * 4]
    return {"tickvals": ticks, "ticktext": [size(tick) for tick in ticks]}
