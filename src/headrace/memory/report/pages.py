"""The pages of a memory profile and of a memory plan."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from headrace._native import ScheduleSearch
from headrace.memory.plan.plain import PlainStep, plain_step
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.tradeoff import PREDICTED, Point, baseline_points, tradeoff
from headrace.memory.profile import MemoryProfile
from headrace.memory.report.charts import memory_timeline, tradeoff_chart
from headrace.memory.report.tables import plan_summary, step_summary
from headrace.memory.schedule import Step, plain_schedule
from headrace.report.page import Page
from headrace.units import size

_Row = tuple[object, ...]


def memory_profile_page(profile: MemoryProfile, source: str) -> Page:
    """Return the page of a profile, which was read from `source`; plans for some seconds."""
    graph, origin = profile.graph, profile.provenance
    page = Page(f"Training step of {profile.model}", f"{source}: {origin['kind']}")
    page.facts(step_summary(profile))
    plain = plain_step(profile)
    page.heading("Memory over a plain run")
    page.figure(memory_timeline(graph, {PREDICTED: plain_schedule(graph)}, eager=profile.eager))
    page.heading("Time against memory (as Figure 4.4)")
    others, points = baseline_points(graph), tradeoff(graph, ScheduleSearch)
    page.figure(tradeoff_chart(points, others, plain))
    page.note("A search of seconds for each budget; headrace memory plan finds faster schedules.")
    _points(page, [*others, *points], plain)
    page.heading("Largest storages")
    largest = sorted(graph.storages, key=lambda storage: storage.nbytes, reverse=True)[:20]
    page.table(("storage", "size"), [(storage.name, size(storage.nbytes)) for storage in largest])
    return page


def memory_plan_page(plan: MemoryPlan, source: str) -> Page:
    """Return the page of a plan, which was read from `source`."""
    graph = plan.profile.graph
    page = Page(
        f"Training step of {plan.profile.model} within {size(plan.budget_bytes)}",
        f"{source}: predicted from costs that are {plan.profile.provenance['kind']}",
    )
    page.facts(plan_summary(plan))
    page.heading("Memory over the steps (as Figure 4.3)")
    eager, plain = plan.profile.eager, plain_step(plan.profile)
    schedules = {PREDICTED: plain_schedule(graph), "planned": plan.schedule}
    page.figure(memory_timeline(graph, schedules, plan.budget_bytes, eager=eager))
    page.heading("Time against memory (as Figure 4.4)")
    others = baseline_points(graph)
    own = Point(
        name="planned", peak_bytes=plan.peak_bytes, time_us=plan.time_us, bound_us=plan.bound_us
    )
    page.figure(tradeoff_chart([own], others, plain))
    _points(page, [*others, own], plain)
    page.heading("Recomputed")
    again = recomputed_rows(plan)
    if again:
        page.table(("module", "operators", "runs", "time, ms", "created"), again)
    else:
        page.note("Nothing is computed again.")
    page.heading("Implementations")
    implementations = implementation_rows(plan)
    if implementations:
        page.table(("module", "operator", "implementation", "runs", "time, ms"), implementations)
    else:
        page.note("Every operator runs by its default implementation.")
    return page


def _points(page: Page, points: Sequence[Point], plain: PlainStep) -> None:
    """Add a table of predicted points, in which plain is measured or predicted as stated."""
    page.table(
        ("schedule", "predicted peak", "of plain, %", "predicted time, ms", "over plain, %"),
        [
            (
                point.name,
                size(point.peak_bytes),
                100 * point.peak_bytes / max(plain.peak_bytes, 1),
                point.time_us / 1e3,
                100 * (point.time_us / plain.time_us - 1) if plain.time_us else 0.0,
            )
            for point in points
        ],
    )
    page.note(f"Plain: {plain}.")


def recomputed_rows(plan: MemoryPlan) -> list[_Row]:
    """Return (module, its operators that run again, runs, ms, bytes) rows, the slowest first."""
    graph = plan.profile.graph
    seen: set[int] = set()
    runs: defaultdict[str, list[Step]] = defaultdict(list)
    for step in plan.schedule.steps:
        if step.operator in seen:
            runs[graph.operators[step.operator].module].append(step)
        seen.add(step.operator)
    rows: list[_Row] = []
    for module, steps in runs.items():
        ways = [
            graph.operators[step.operator].implementations[step.implementation] for step in steps
        ]
        created = sum(
            graph.storages[storage].nbytes for variant in ways for storage in variant.creates
        )
        names = Counter(graph.operators[step.operator].name for step in steps)
        time_ms = sum(variant.time_us for variant in ways) / 1e3
        rows.append((module or "(none)", ", ".join(names), len(steps), time_ms, size(created)))
    return sorted(rows, key=lambda row: -float(str(row[3])))


def implementation_rows(plan: MemoryPlan) -> list[_Row]:
    """Return (module, operator, implementation, runs, ms) rows of those that are not the first."""
    operators = plan.profile.graph.operators
    runs = Counter(step for step in plan.schedule.steps if step.implementation)
    rows: list[_Row] = []
    for step, count in sorted(runs.items(), key=lambda row: row[0].operator):
        operator = operators[step.operator]
        variant = operator.implementations[step.implementation]
        time_ms = count * variant.time_us / 1e3
        rows.append((operator.module or "(none)", operator.name, variant.name, count, time_ms))
    return rows
