"""The page of an embedding profile: cache against lookahead, transfers, tables."""

from typing import TYPE_CHECKING

from headrace.embeddings.cli.show import (
    TABLE_COLUMNS,
    TRANSFER_COLUMNS,
    lookaheads,
    table_cells,
    transfer_cells,
)
from headrace.embeddings.profile import EmbeddingProfile
from headrace.report.page import Page, empty_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go


def access_page(profile: EmbeddingProfile, source: str) -> Page:
    """Return the page of a profile, which was read from `source`."""
    page = Page("Embedding rows of a job's batches", f"{source}: {profile.description}")
    page.facts(
        [
            ("trainers", str(profile.trainers)),
            ("distinct rows a batch", f"{profile.rows:,.0f}"),
        ]
    )
    page.heading("Rows that are fetched and cached, by lookahead")
    page.figure(_lookahead_figure(profile))
    page.heading("Rows between trainers a step")
    page.figure(_transfer_figure(profile), height=300)
    page.table(TRANSFER_COLUMNS, transfer_cells(profile))
    page.heading(f"Tables, of {profile.counted} examples")
    page.table(TABLE_COLUMNS, table_cells(profile))
    return page


def _transfer_figure(profile: EmbeddingProfile) -> "go.Figure":
    """Return bars of all rows, and of those that the next step needs, which lie on them."""
    figure = empty_figure()
    names = [name for name, _, _ in transfer_cells(profile)]
    transfers = profile.transfers.values()
    figure.add_bar(y=names, x=[rows.rows for rows in transfers], orientation="h", name="in all")
    figure.add_bar(
        y=names,
        x=[rows.critical_rows for rows in transfers],
        orientation="h",
        name="before the next step",
    )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title="rows between trainers a step")
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def _lookahead_figure(profile: EmbeddingProfile) -> "go.Figure":
    figure = empty_figure()
    batches = lookaheads(profile)
    for name, rows in (("fetched a step", profile.fetched), ("in the cache", profile.resident)):
        figure.add_scatter(
            x=batches, y=[rows(count) for count in batches], mode="lines+markers", name=name
        )
    figure.update_xaxes(title="lookahead, batches", type="log")
    figure.update_yaxes(title="rows", type="log")
    return figure
