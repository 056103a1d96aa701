"""The page of an attention profile: the figures of section 6.2 for the user's model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headrace.attention.cli.show import pair_mean
from headrace.attention.plan.clusters import (
    cluster_sizes,
    clustered_by_distance,
    clustering_errors,
    elbow,
)
from headrace.attention.profile import AttentionProfile, LayerProfile
from headrace.report.page import Page, empty_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SHOWN_LAYERS = 4
"""Layers with a picture of their own, evenly spaced: of all of them a page would be megabytes."""
_MATRIX_HEIGHT = 640


def likeness_page(profile: AttentionProfile, source: str) -> Page:
    """Return the page of a profile, which was read from `source`."""
    page = Page(
        "Likeness of heads",
        f"{source}: {profile.samples} samples of {profile.tokens} tokens",
    )
    page.heading("Correlation of heads' probabilities")
    page.note(
        "Mean over pairs of a layer's heads. Most heads look at the first token most: without it "
        "they are less alike."
    )
    page.figure(_correlations(profile))
    count = len(profile.layers)
    for index in sorted({round(place) for place in np.linspace(0, count - 1, _SHOWN_LAYERS)}):
        layer = profile.layers[index]
        page.heading(f"Layer {index}")
        page.note(
            "Correlation of pairs of heads: mean over all samples, and of one sample; with all "
            "tokens, and without the first one (Figures 6.3 and 6.4)."
        )
        page.figure(_matrices(layer), height=_MATRIX_HEIGHT)
        page.note(
            "Output error: change of the layer's output where a head (across) uses the "
            "probabilities of another (down), mean square over that of the mean head's output."
        )
        page.figure(_output_errors(layer))
    errors = [clustering_errors(layer.distance) for layer in profile.layers]
    page.heading("Clustering error")
    page.note(
        "Sum of squared distances of a layer's heads to the centres of their clusters, over that "
        "of one cluster. Large: the elbow, the paper's number of clusters (Figure 6.5)."
    )
    page.figure(_errors(errors))
    page.heading("Sizes of clusters")
    page.note("Heads of every cluster at the elbow, the largest below (Figure 6.10).")
    page.figure(_sizes(profile, errors))
    page.heading("Changes of membership")
    page.note("Share of pairs of heads that one more token puts together or apart (Figure 6.6).")
    page.figure(_changes(profile))
    page.heading("Uniform heads")
    page.note(
        "Entropy of a head's probabilities over its largest value: one of 1 looks at all tokens "
        "alike (Figure 6.1)."
    )
    page.figure(_uniformity(profile))
    return page


def _correlations(profile: AttentionProfile) -> "go.Figure":
    figure = empty_figure()
    layers = list(range(len(profile.layers)))
    for name, label in _CORRELATIONS.items():
        matrices = [getattr(layer, name) for layer in profile.layers]
        if any(matrix is None for matrix in matrices):
            continue
        means = [pair_mean(matrix) for matrix in matrices]
        figure.add_scatter(x=layers, y=means, mode="lines+markers", name=label)
    figure.update_xaxes(title="layer", tickformat="d")
    figure.update_yaxes(title="correlation", rangemode="tozero")
    return figure


_CORRELATIONS = {
    "correlation": "all samples",
    "correlation_beyond_first": "all samples, without the first token",
    "sample_correlation": "one sample",
    "sample_correlation_beyond_first": "one sample, without the first token",
}


def _matrices(layer: LayerProfile) -> "go.Figure":
    """Return the layer's correlations beside each other, in one scale."""
    figure = empty_figure()
    places = ((0, 0.55), (0.55, 0.55), (0, 0), (0.55, 0))
    names = zip(_CORRELATIONS.items(), places, strict=True)
    for number, ((name, label), (left, low)) in enumerate(names, start=1):
        matrix = getattr(layer, name)
        if matrix is None:
            continue
        axis = "" if number == 1 else str(number)
        figure.add_heatmap(
            z=np.round(matrix, 3).tolist(),
            xaxis=f"x{axis}",
            yaxis=f"y{axis}",
            coloraxis="coloraxis",
        )
        figure.update_layout(
            {
                f"xaxis{axis}": {
                    "domain": [left, left + 0.42],
                    "anchor": f"y{axis}",
                    "title": "" if low else "head",
                    "tickformat": "d",
                },
                f"yaxis{axis}": {
                    "domain": [low, low + 0.4],
                    "anchor": f"x{axis}",
                    "autorange": "reversed",
                    "title": "head",
                    "tickformat": "d",
                },
            }
        )
        figure.add_annotation(
            text=label,
            showarrow=False,
            xref="paper",
            yref="paper",
            x=left + 0.21,
            y=low + 0.41,
            xanchor="center",
            yanchor="bottom",
        )
    scale = {"cmin": 0, "cmax": 1, "colorscale": "Viridis", "colorbar": {"title": "correlation"}}
    figure.update_layout(coloraxis=scale)
    return figure


def _output_errors(layer: LayerProfile) -> "go.Figure":
    figure = empty_figure()
    figure.add_heatmap(
        z=np.round(layer.output_error, 4).tolist(),
        zmin=0,
        colorscale="Viridis",
        colorbar={"title": "output error"},
    )
    figure.update_xaxes(title="head", tickformat="d")
    figure.update_yaxes(title="head of the probabilities", tickformat="d", autorange="reversed")
    return figure


def _errors(layers: Sequence[NDArray[np.float64]]) -> "go.Figure":
    figure = empty_figure()
    for index, errors in enumerate(layers):
        chosen = elbow(errors)
        counts = list(range(1, len(errors) + 1))
        figure.add_scatter(
            x=counts,
            y=(errors / max(errors[0], 1e-30)).tolist(),
            mode="lines+markers",
            name=f"layer {index}",
            marker={"size": [12 if count == chosen else 4 for count in counts]},
        )
    figure.update_xaxes(title="clusters", tickformat="d")
    figure.update_yaxes(title="error over that of one cluster", rangemode="tozero")
    return figure


def _sizes(profile: AttentionProfile, errors: Sequence[NDArray[np.float64]]) -> "go.Figure":
    sizes = [
        cluster_sizes(clustered_by_distance(layer.distance, elbow(layer_errors)))
        for layer, layer_errors in zip(profile.layers, errors, strict=True)
    ]
    figure = empty_figure()
    for rank in range(max(map(len, sizes))):
        figure.add_bar(
            x=list(range(len(sizes))),
            y=[layer[rank] if rank < len(layer) else 0 for layer in sizes],
            marker={"line": {"width": 1, "color": "#fff"}, "color": "#3b6fb6"},
            hovertemplate="layer %{x}: %{y} heads<extra></extra>",
            showlegend=False,
        )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="layer", tickformat="d")
    figure.update_yaxes(title="heads of each cluster", tickformat="d")
    return figure


def _changes(profile: AttentionProfile) -> "go.Figure":
    figure = empty_figure()
    changes = np.mean([layer.changes for layer in profile.layers], axis=0)
    tokens = list(range(3, 3 + len(changes)))
    figure.add_scatter(x=tokens, y=changes.tolist(), mode="lines+markers", name="all layers")
    figure.update_xaxes(title="first tokens", tickformat="d")
    figure.update_yaxes(title="share of pairs that change", rangemode="tozero", tickformat=".0%")
    return figure


def _uniformity(profile: AttentionProfile) -> "go.Figure":
    figure = empty_figure()
    rows = [layer.uniformity for layer in profile.layers]
    width = max(map(len, rows))
    padded = [np.pad(row, (0, width - len(row)), constant_values=np.nan) for row in rows]
    figure.add_heatmap(
        z=np.round(padded, 3).tolist(),
        zmin=0,
        zmax=1,
        colorscale="Viridis",
        colorbar={"title": "uniformity"},
    )
    figure.update_xaxes(title="head", tickformat="d")
    figure.update_yaxes(title="layer", tickformat="d", autorange="reversed")
    return figure
