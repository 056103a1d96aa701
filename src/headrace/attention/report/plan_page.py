"""The page of an attention plan: the frontier of bytes against loss, and the layers."""

from typing import TYPE_CHECKING

from headrace.attention.cli.show import error_text, heads_text
from headrace.attention.plan.plan import AttentionPlan
from headrace.report.page import Page, empty_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go


def cache_plan_page(plan: AttentionPlan, source: str) -> Page:
    """Return the page of a plan, which was read from `source`."""
    page = Page("A model's cache in fewer bytes", f"{source}: {plan.description}")
    page.facts([("chosen", plan.chosen or "by hand"), ("bytes", f"{plan.share:z.0%}")])
    if plan.frontier:
        page.heading("Bytes against loss")
        page.figure(_frontier(plan))
    if plan.alternatives:
        page.heading("Alternatives with more clusters")
        page.note(
            "New caches get them where the output error of observed requests exceeds the plan's, "
            f"{error_text(plan.output_error)}."
        )
        page.table(
            ("clusters", "bytes"),
            [
                (alternative.chosen or str(alternative.clusters), f"{alternative.share:z.0%}")
                for alternative in plan.alternatives
            ],
        )
    page.heading("Layers")
    page.table(
        ("layer", "heads", "represent", "heads of keys", "keys", "values"),
        [
            (
                str(index),
                heads_text(layer.heads.query_heads, layer.heads.key_value_heads),
                str(layer.clusters),
                str(layer.key_heads),
                layer.keys.value,
                layer.values.value,
            )
            for index, layer in enumerate(plan.layers)
        ],
    )
    return page


def _frontier(plan: AttentionPlan) -> "go.Figure":
    figure = empty_figure()
    figure.add_scatter(
        x=[100 * choice.share for choice in plan.frontier],
        y=[100 * choice.added_loss for choice in plan.frontier],
        error_y={"array": [100 * choice.standard_error for choice in plan.frontier]},
        text=[choice.name for choice in plan.frontier],
        mode="lines+markers",
        name="frontier",
    )
    figure.update_xaxes(title="bytes, % of the model's own cache")
    figure.update_yaxes(title="added loss, %")
    return figure
