"""The pages of a topology and of a measured profile."""

from typing import TYPE_CHECKING

import numpy as np

from headrace.report.graph import draw_topology
from headrace.report.page import Page, empty_figure
from headrace.topology import Topology
from headrace.topology.profile import Profile
from headrace.units import GBIT_FROM, duration, rate

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HEATMAP_RANKS = 512
_MOST_TICKS = 16
"""Ranks that are named on an axis."""


def topology_page(topology: Topology, source: str) -> Page:
    """Return the page of `topology`, which was read from `source`."""
    page = Page(
        f"Topology {topology.name}",
        f"{source}: {topology.ranks} ranks on {len(topology.hosts)} hosts, {len(topology.links)} "
        f"links, {len(topology.shared)} shared capacities.",
    )
    _network(page, topology)
    return page


def profile_page(profile: Profile, source: str) -> Page:
    """Return the page of `profile`, which was read from `source`."""
    page = Page(f"Profile of {profile.topology.name}", source)
    page.facts(profile.summary())
    _network(page, profile.topology)
    return page


def _network(page: Page, topology: Topology) -> None:
    drawing = draw_topology(topology)
    page.heading("Ranks and links")
    if drawing.note:
        page.note(f"{drawing.note}.")
    page.figure(drawing.figure, 620)
    if topology.ranks > _HEATMAP_RANKS:
        page.note(f"No map of {topology.ranks} ranks' rates: more than {_HEATMAP_RANKS}.")
    elif topology.links:
        page.heading("Rate of every link")
        page.figure(_heatmap(topology), 560)
    if topology.shared:
        page.heading("Shared capacities")
        page.table(
            ("name", "rate", "links"),
            [(s.name, rate(s.beta_us_per_mb), len(s.links)) for s in topology.shared],
        )
        bounds = [s.name for s in topology.shared if s.at_least]
        if bounds:
            page.note(f"At least so much, as no limit was reached: {', '.join(bounds)}.")
    page.heading("Links by cost")
    page.table(("links", "alpha", "rate", "such as"), _classes(topology))


def _classes(topology: Topology) -> list[tuple[int, str, str, str]]:
    """Links of equal cost, most first."""
    classes: dict[tuple[float, float], list[int]] = {}
    for index, link in enumerate(topology.links):
        classes.setdefault((link.alpha_us, link.beta_us_per_mb), []).append(index)
    rows = sorted(classes.items(), key=lambda row: (-len(row[1]), row[0]))
    return [
        (
            len(links),
            duration(alpha),
            rate(beta),
            f"{topology.links[links[0]].src} > {topology.links[links[0]].dst}",
        )
        for (alpha, beta), links in rows
    ]


def _heatmap(topology: Topology) -> "go.Figure":
    n, columns = topology.ranks, topology.columns
    rates = np.full((n, n), np.nan)
    rates[columns.src, columns.dst] = (8e6 / columns.beta_us_per_mb).round(3)
    unit = "Mbit/s"
    if np.nanmax(rates) >= GBIT_FROM:
        rates, unit = rates / 1e3, "Gbit/s"
    figure = empty_figure()
    ticks = {"tick0": 0, "dtick": -(-n // _MOST_TICKS)}  # of their own they stand at -0.5 too
    figure.add_heatmap(
        z=rates,
        colorscale="Blues",
        colorbar={"title": unit},
        hovertemplate=f"%{{y}} > %{{x}}: %{{z:.4g}} {unit}<extra></extra>",
    )
    figure.update_layout(
        xaxis={"title": "to rank", "constrain": "domain", **ticks},
        yaxis={"title": "from rank", "autorange": "reversed", "scaleanchor": "x", **ticks},
    )
    return figure
