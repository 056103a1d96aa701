"""The pages of an index profile and of an index plan."""

import numpy as np

from headrace.index.plan.plan import IndexPlan
from headrace.index.profile import IndexProfile, TraceEncoding
from headrace.index.report.charts import (
    frontier_chart,
    gaps_chart,
    image_chart,
    leaves_chart,
    memory_chart,
    ranks_chart,
)
from headrace.index.report.tables import (
    CANDIDATE_COLUMNS,
    candidate_row,
    fit_rows,
    index_plan_summary,
    index_profile_summary,
)
from headrace.index.tables import LEAVES
from headrace.report.page import Page


def index_profile_page(profile: IndexProfile, source: str) -> Page:
    """Return the page of a profile, which was read from `source`."""
    page = Page("Workload of an index", f"{source}: {profile.provenance.get('source', 'a trace')}")
    page.facts(index_profile_summary(profile))
    _image(page, profile.encoding)
    page.heading("Operations by rank of their key")
    page.figure(ranks_chart(profile.encoding), height=300)
    page.heading("Distance of keys from lines")
    page.note(
        "Root mean square residual, in positions, of the line through windows of neighbouring "
        "keys; evenness is 1 where a linear model spreads keys alike."
    )
    columns = ("keys of a window", "half of the windows", "nine tenths", "all", "evenness")
    page.table(columns, fit_rows(profile.encoding.tables["fits"]))
    page.heading("Distances between keys")
    page.figure(gaps_chart(profile.encoding), height=300)
    return page


def index_plan_page(plan: IndexPlan, source: str) -> Page:
    """Return the page of a plan, which was read from `source`."""
    page = Page(
        f"Index of {plan.configuration.leaf} leaves", f"{source}: {plan.configuration.name}"
    )
    page.facts(index_plan_summary(plan))
    page.heading("Read-write frontier (as Figure 6.4)")
    page.figure(frontier_chart(plan))
    kind = plan.settings.get("frontier", "predicted")
    page.note(f"Times of a find and of an insert are {kind}; the line is the Pareto front.")
    page.heading("Memory against throughput")
    page.figure(memory_chart(plan))
    page.heading("Leaf mix")
    tried = [
        candidate for candidate in plan.candidates if candidate.trials and any(candidate.leaves)
    ]
    if tried:
        page.figure(leaves_chart(tried), height=320)
    else:
        page.note(f"No trial has reported its leaves ({', '.join(LEAVES)}).")
    page.heading("Candidates")
    page.table(CANDIDATE_COLUMNS, [candidate_row(candidate) for candidate in plan.candidates])
    _image(page, plan.encoding)
    return page


def _image(page: Page, encoding: TraceEncoding) -> None:
    page.heading("Trace image")
    page.figure(image_chart(encoding), height=460)
    filled = np.count_nonzero(encoding.image.any(axis=(0, 2)))
    page.note(
        f"Operations by time and key, in {filled} of {encoding.image.shape[1]} columns; extreme "
        "keys leave the others in one column, and the charts by rank, on the profile's page, are "
        "free of that."
    )
