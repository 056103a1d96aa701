"""The page of an embedding plan: processes, caches, and what a step moves and needs."""

from typing import TYPE_CHECKING

from headrace.embeddings.cli.show import (
    MOVED_COLUMNS,
    STEP_COLUMNS,
    TIME_COLUMNS,
    moved_cells,
    plan_facts,
    step_cells,
    time_cells,
)
from headrace.embeddings.plan.plan import EmbeddingPlan
from headrace.embeddings.plan.step import PredictedStep
from headrace.report.page import Page, empty_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go


def lookahead_plan_page(plan: EmbeddingPlan, source: str) -> Page:
    """Return the page of a plan, which was read from `source`."""
    page = Page("Embedding rows of a training job", f"{source}: {plan.description}")
    page.facts(list(plan_facts(plan).items()))
    if plan.time is not None:
        page.heading("Time of a step by resource, predicted")
        page.figure(_time_figure(plan.time))
        page.table(TIME_COLUMNS, time_cells(plan))
    page.heading("Rows of a step, predicted")
    page.table(STEP_COLUMNS, step_cells(plan))
    page.heading("Bytes of a step, predicted")
    page.table(MOVED_COLUMNS, moved_cells(plan))
    return page


def _time_figure(time: PredictedStep) -> "go.Figure":
    figure = empty_figure()
    names = [*reversed([*time.resources_s])]
    figure.add_bar(
        x=[1e3 * time.resources_s[name] for name in names], y=names, orientation="h", name="busy"
    )
    figure.update_xaxes(title="busy in a step, ms")
    return figure
