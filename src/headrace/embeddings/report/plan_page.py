"""The page of an embedding plan: processes, caches, and the rows of a step."""

from headrace.embeddings.cli.show import STEP_COLUMNS, plan_facts, step_cells
from headrace.embeddings.plan.plan import EmbeddingPlan
from headrace.report.page import Page


def lookahead_plan_page(plan: EmbeddingPlan, source: str) -> Page:
    """Return the page of a plan, which was read from `source`."""
    page = Page("Embedding rows of a training job", f"{source}: {plan.description}")
    page.facts(list(plan_facts(plan).items()))
    page.heading("Rows of a step, predicted")
    page.table(STEP_COLUMNS, step_cells(plan))
    return page
