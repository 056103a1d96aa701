"""The page of an attention profile: the figures of section 6.2 for the user's model."""

from typing import TYPE_CHECKING

import numpy as np

from headrace.attention.cli.show import pair_mean
from headrace.attention.plan.clusters import (
    cluster_sizes,
    clustered_by_distance,
    clustering_errors,
    elbow,
)
from headrace.attention.profile import AttentionProfile
from headrace.report.page import Page, empty_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SHOWN_LAYERS = 4
"""Layers with a picture of their own, evenly spaced: of all of them a page would be megabytes."""


def likeness_page(profile: AttentionProfile, source: str) -> Page:
    """Return the page of a profile, which was read from `source`."""
    page = Page(
        "Likeness of heads",
        f"{source}: {profile.samples} samples of {profile.tokens} tokens",
    )
    page.heading("Correlation of heads' probabilities")
    page.note("Mean over pairs of a layer's heads; with the first token, which most heads look at")
    page.figure(_correlations(profile))
    count = len(profile.layers)
    for index in sorted({round(place) for place in np.linspace(0, count - 1, _SHOWN_LAYERS)}):
        layer = profile.layers[index]
        page.heading(f"Layer {index}")
        page.note("Correlation over all samples, of one sample, and the error of sharing outputs.")
        page.figure(_matrix(layer.correlation, "correlation"))
        page.figure(_matrix(layer.sample_correlation, "correlation of one sample"))
        page.figure(_matrix(layer.output_error, "output error"))
    page.heading("Clustering error")
    page.figure(_errors(profile))
    page.heading("Clusters at the elbow, by size")
    page.table(("layer", "clusters", "heads of each"), _sizes(profile))
    page.heading("Changes of membership")
    page.note("Share of pairs that one more token puts together or apart.")
    page.figure(_changes(profile))
    page.heading("Uniform heads")
    page.note("Entropy of a head's probabilities over its largest value; 1 looks at all alike.")
    page.figure(_matrix(_padded([layer.uniformity for layer in profile.layers]), "uniformity"))
    return page


def _correlations(profile: AttentionProfile) -> "go.Figure":
    figure = empty_figure()
    layers = list(range(len(profile.layers)))
    for name, label in (
        ("correlation", "all tokens"),
        ("correlation_beyond_first", "beyond the first token"),
        ("sample_correlation", "one sample"),
    ):
        means = [pair_mean(getattr(layer, name)) for layer in profile.layers]
        figure.add_scatter(x=layers, y=means, mode="lines+markers", name=label)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="correlation")
    return figure


def _matrix(values: np.ndarray, name: str) -> "go.Figure":
    figure = empty_figure()
    figure.add_heatmap(z=np.round(values, 3).tolist(), colorbar={"title": name})
    figure.update_xaxes(title="head")
    figure.update_yaxes(title="head" if values.shape[0] == values.shape[1] else "layer")
    return figure


def _errors(profile: AttentionProfile) -> "go.Figure":
    figure = empty_figure()
    for index, layer in enumerate(profile.layers):
        errors = clustering_errors(layer.distance)
        chosen = elbow(errors)
        figure.add_scatter(
            x=list(range(1, len(errors) + 1)),
            y=errors.tolist(),
            mode="lines+markers",
            name=f"layer {index}",
            marker={"size": [12 if count == chosen else 4 for count in range(1, len(errors) + 1)]},
        )
    figure.update_xaxes(title="clusters; large: the elbow")
    figure.update_yaxes(title="sum of squared distances")
    return figure


def _sizes(profile: AttentionProfile) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for index, layer in enumerate(profile.layers):
        clusters = elbow(clustering_errors(layer.distance))
        sizes = cluster_sizes(clustered_by_distance(layer.distance, clusters))
        rows.append((str(index), str(clusters), ", ".join(map(str, sizes))))
    return rows


def _changes(profile: AttentionProfile) -> "go.Figure":
    figure = empty_figure()
    changes = np.mean([layer.changes for layer in profile.layers], axis=0)
    tokens = list(range(3, 3 + len(changes)))
    figure.add_scatter(x=tokens, y=changes.tolist(), mode="lines+markers", name="all layers")
    figure.update_xaxes(title="first tokens")
    figure.update_yaxes(title="share of pairs that change")
    return figure


def _padded(rows: list[np.ndarray]) -> np.ndarray:
    width = max(len(row) for row in rows)
    return np.array([np.pad(row, (0, width - len(row)), constant_values=np.nan) for row in rows])
