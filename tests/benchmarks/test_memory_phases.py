"""Worth of the solver's phases: relative losses of plans without each of them."""

import pytest

from benchmarks.memory.phases import COMPLETE, REPEATED, least_budget, planned, worths
from headrace.memory.plan.phases import PHASES
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import plain_schedule
from tests.memory.graphs import chain
from tests.waiting import ENDLESS_S


def test_losses_are_relative_to_all_phases_and_lost_plans_are_counted() -> None:
    name = PHASES[0].name
    rows = [
        {"network": "a", "seed": 0, "phases": COMPLETE, "times_us": [10.0, 20.0, None]},
        {"network": "a", "seed": 0, "phases": name, "times_us": [11.0, None, None]},
    ]
    gaps, leasts = ([0.1, 0.1, None], [0.3, None, None]), (100, 150)
    rows = [
        {**row, "gaps": row_gaps, "least_bytes": least}
        for row, row_gaps, least in zip(rows, gaps, leasts, strict=True)
    ]
    rows += [{**rows[0], "phases": phase.name} for phase in PHASES[1:]]
    rows.append({**rows[0], "phases": REPEATED, "times_us": [10.0, 22.0, None]})
    again, first, *others = worths(rows)
    assert again["phase"] == REPEATED
    assert again["time"] == pytest.approx(0.05)
    assert first == {
        "phase": name,
        "time": pytest.approx(0.1),
        "gap": pytest.approx(0.2),
        "least": pytest.approx(0.5),
        "lost": 1,
    }
    assert all((row["time"], row["least"], row["lost"]) == (0, 0, 0) for row in others)


def test_the_least_budget_has_a_plan_and_one_below_it_has_none() -> None:
    graph = chain(9, resident=100)
    plain_bytes = verify(graph, plain_schedule(graph)).peak_bytes
    least = least_budget(graph, plain_bytes, PHASES, seed=0, seconds=ENDLESS_S)
    assert planned(graph, least, PHASES, seed=0, seconds=ENDLESS_S) is not None
    step = (plain_bytes - graph.resident_bytes) // 2**6 + 1
    assert planned(graph, least - 2 * step, PHASES, seed=0, seconds=ENDLESS_S, gap=1.0) is None
