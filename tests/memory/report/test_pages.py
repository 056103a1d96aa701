"""Pages of profiles and plans: charts with titled axes, and tables of what a plan changes."""

from dataclasses import replace
from typing import Any

from headrace._native import ScheduleSearch
from headrace.memory.graph import Graph
from headrace.memory.plan.effort import SolveEffort
from headrace.memory.plan.make import make_plan
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.tradeoff import PREDICTED, tradeoff
from headrace.memory.profile import EagerStep, MemoryProfile
from headrace.memory.report.charts import MEASURED
from headrace.memory.report.pages import (
    implementation_rows,
    memory_plan_page,
    memory_profile_page,
    recomputed_rows,
)
from headrace.memory.report.tables import plan_summary, step_summary
from headrace.memory.schedule import Step, plain_schedule
from headrace.units import duration
from tests.memory.graphs import chain
from tests.memory.simulate import simulate_step

MIB = 1 << 20


def profile(graph: Graph) -> MemoryProfile:
    return MemoryProfile(
        graph=graph,
        model="a chain",
        model_digest="5f1c",
        device="a CPU",
        torch="2.15.0",
        provenance={"kind": "roofline", "source": "a test"},
    )


def planned(graph: Graph) -> MemoryPlan:
    budget = (simulate_step(graph, plain_schedule(graph)).peak_bytes + graph.resident_bytes) // 2
    return make_plan(profile(graph), budget, ScheduleSearch, effort=SolveEffort.QUICK)


def traces(figure: dict[str, Any]) -> dict[str, dict[str, Any]]:
    for axis in ("xaxis", "yaxis"):
        title = figure["layout"][axis]["title"]["text"]
        assert any(unit in title for unit in ("MiB", "%", "step")), title
    found = {each["name"]: each for each in figure["data"]}
    assert len(found) == len(figure["data"]), "two traces of one name"
    return found


def test_the_page_of_a_plan(figures: list[dict[str, Any]]) -> None:
    graph = chain(8, nbytes=MIB, resident=3 * MIB)
    plan = planned(graph)
    html = memory_plan_page(plan, "a.plan").html()
    over_steps, against = map(traces, figures)
    assert set(over_steps) >= {PREDICTED, "planned", "resident", "budget"}
    assert MEASURED not in {*over_steps, *against}
    assert max(over_steps["planned"]["y"]) * MIB == plan.peak_bytes
    assert len(over_steps["planned"]["y"]) == len(plan.schedule.steps)
    assert over_steps["budget"]["y"] == [plan.budget_bytes / MIB] * 2
    assert over_steps["resident"]["y"] == [3, 3]
    assert set(against) >= {PREDICTED, "sqrt(n)", "planned"}
    assert against[PREDICTED]["y"] == [0]
    rows = recomputed_rows(plan)
    again = len(plan.schedule.steps) - len(graph.operators)
    assert again == sum(int(str(row[2])) for row in rows) > 0
    assert "Recomputed" in html
    assert "forward" in html


def test_plain_is_eagers_step_where_that_was_measured(figures: list[dict[str, Any]]) -> None:
    """It was a simulation of traced operators, which eager execution may not run."""
    plan = planned(chain(8, nbytes=MIB, resident=3 * MIB))
    rows = dict(plan_summary(plan))
    assert rows["plain"].endswith(", predicted")
    eager = EagerStep(peak_bytes=32 * MIB, time_us=plan.time_us / 1.25)
    plan = replace(plan, profile=replace(plan.profile, eager=eager))
    rows = dict(plan_summary(plan))
    assert rows["plain"] == f"32 MiB in {duration(eager.time_us)}, eager's step as measured"
    assert rows["time"] == f"{duration(plan.time_us)}, predicted, +25.0% of plain"
    assert dict(step_summary(plan.profile))["plain"] == rows["plain"]
    html = memory_plan_page(plan, "a.plan").html()
    assert f"Plain: {rows['plain']}." in html.replace("&#x27;", "'")
    over_steps, against = map(traces, figures)
    assert over_steps[MEASURED]["y"] == [32, 32]
    assert (against[MEASURED]["x"], against[MEASURED]["y"]) == ([32], [0])
    (overhead,) = against["planned"]["y"]
    assert abs(overhead - 25) < 1e-6
    unmeasured = {**plan.profile.provenance, "eager": "it needs more"}
    profile_without = replace(plan.profile, eager=None, provenance=unmeasured)
    text = dict(step_summary(profile_without))["plain"]
    assert text.endswith(", predicted: eager's step was not measured, it needs more")


def test_the_page_of_a_plan_that_changes_nothing(figures: list[dict[str, Any]]) -> None:
    graph = chain(4, nbytes=MIB)
    plan = make_plan(profile(graph), 1 << 40, ScheduleSearch, effort=SolveEffort.QUICK)
    html = memory_plan_page(plan, "a.plan").html()
    assert "Nothing is computed again" in html
    assert "by its default implementation" in html
    assert len(figures) == 2


def test_implementations_that_are_chosen_are_counted() -> None:
    graph = chain(3)
    first = graph.operators[0]
    other = replace(first.implementations[0], name="in place", time_us=7.0)
    both = replace(first, implementations=(*first.implementations, other))
    graph = replace(graph, operators=(both, *graph.operators[1:]))
    schedule = plain_schedule(graph)
    changed = replace(schedule, steps=(Step(0, 1), *schedule.steps[1:]))
    plan = replace(make_plan(profile(graph), 1 << 30, ScheduleSearch), schedule=changed)
    assert implementation_rows(plan) == [("0", "forward0", "in place", 1, 0.007)]


def test_the_page_of_a_profile_has_a_falling_curve(figures: list[dict[str, Any]]) -> None:
    graph = chain(8, nbytes=MIB, resident=MIB)
    points = tradeoff(graph, ScheduleSearch)
    assert len(points) >= 2
    assert [each.peak_bytes for each in points] == sorted(
        (each.peak_bytes for each in points), reverse=True
    )
    assert [each.time_us for each in points] == sorted(each.time_us for each in points)
    assert all(each.bound_us <= each.time_us + 1e-6 for each in points)
    html = memory_profile_page(profile(graph), "a.profile").html()
    assert "Largest storages" in html
    over_steps, against = map(traces, figures)
    assert "budget" not in over_steps
    assert len(against["planned"]["x"]) == len(points)
