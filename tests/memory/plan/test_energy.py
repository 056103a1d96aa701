"""Plans of least energy: as good as the best of all schedules, and not what takes least time."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from headrace._native import ScheduleSearch
from headrace.errors import ArtifactError, InputError
from headrace.memory.errors import ScheduleError
from headrace.memory.graph import Graph
from headrace.memory.plan.effort import SolveEffort
from headrace.memory.plan.energy import in_microjoules, load_watts
from headrace.memory.plan.make import make_plan
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.sweep import sweep
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import plain_schedule
from tests.memory.graphs import chain
from tests.memory.plan.oracle import fastest
from tests.memory.test_profile import profile_of


def timed_chain(random: Random) -> Graph:
    """Return a chain whose operators take random times."""
    graph = chain(6)
    operators = tuple(
        replace(
            each,
            implementations=(
                replace(each.implementations[0], time_us=float(random.randint(1, 9))),
            ),
        )
        for each in graph.operators
    )
    return replace(graph, operators=operators)


def test_no_schedule_needs_less_energy() -> None:
    differ = 0
    for seed in range(16):
        random = Random(seed)
        graph = timed_chain(random)
        watts = {each.name: random.choice((1.0, 50.0)) for each in graph.operators}
        watts |= {"default": 3.0}
        for budget in (60, 50):
            best, quickest = fastest(in_microjoules(graph, watts), budget), fastest(graph, budget)
            assert best is not None
            assert quickest is not None
            plan = make_plan(
                profile_of(graph),
                budget,
                ScheduleSearch,
                effort=SolveEffort.QUICK,
                seed=seed,
                watts=watts,
            )
            plan.verify()
            assert plan.energy_uj == pytest.approx(best.time_us, rel=0.02)
            assert plan.settings["energy_bound_uj"] <= best.time_us * (1 + 1e-9)
            differ += quickest.time_us < plan.time_us * (1 - 1e-9)
    assert differ, "energy and time never differed"


def test_less_budget_needs_no_less_energy_and_plans_are_kept(tmp_path: Path) -> None:
    graph = chain(12)
    watts = {"default": 2.0, "forward3": 40.0}
    peak = verify(graph, plain_schedule(graph)).peak_bytes
    budgets = [peak, int(0.7 * peak), int(0.5 * peak)]
    found = sweep(profile_of(graph), budgets, ScheduleSearch, effort=SolveEffort.QUICK, watts=watts)
    plans = [found[each] for each in budgets]
    energies: list[float] = []
    for plan in plans:
        assert isinstance(plan, MemoryPlan)
        assert plan.energy_uj is not None
        assert plan.plain_uj is not None
        assert plan.cost == plan.energy_uj >= plan.plain_uj
        energies.append(plan.energy_uj)
        plan.save(tmp_path / "plan")
        assert MemoryPlan.load(tmp_path / "plan") == plan
    assert energies == sorted(energies)


def test_a_plan_of_a_malformed_table_is_refused(tmp_path: Path) -> None:
    graph = chain(4)
    peak = verify(graph, plain_schedule(graph)).peak_bytes
    plan = make_plan(profile_of(graph), peak, ScheduleSearch, watts={"default": 2.0})
    replace(plan, settings={"watts": {"default": -1}}).save(tmp_path / "plan")
    with pytest.raises(ArtifactError, match=r"settings.watts.default.* more than 0 watts"):
        MemoryPlan.load(tmp_path / "plan")
    wrong = replace(plan, settings={**plan.settings, "energy_bound_uj": 99.0})
    with pytest.raises(ScheduleError, match=r"the bound is 99.0, the plan needs 16.0"):
        wrong.verify()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("{", "is not JSON"),
        ([1], "needs|not"),
        ({"mm": 3}, "needs an entry 'default'"),
        ({"default": 0}, "more than 0 watts"),
        ({"default": "hot"}, "not a number"),
    ],
)
def test_tables_that_are_none(table: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "watts.json"
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    with pytest.raises(InputError, match=message):
        load_watts(path)


def test_kinds_of_operators_are_names_without_numbers(tmp_path: Path) -> None:
    path = tmp_path / "watts.json"
    path.write_text('{"mm": 7, "default": 2}')
    graph = chain(3)
    named = replace(
        graph,
        operators=tuple(
            replace(each, name="mm_1" if not index else each.name)
            for index, each in enumerate(graph.operators)
        ),
    )
    found = in_microjoules(named, load_watts(path)).operators
    ratios = [
        one.implementations[0].time_us / other.implementations[0].time_us
        for one, other in zip(found, named.operators, strict=True)
    ]
    assert ratios == [7.0, *[2.0] * (len(ratios) - 1)]


def test_an_interrupted_sweep_says_which_budgets_were_not_tried() -> None:
    graph = chain(6)
    plain = verify(graph, plain_schedule(graph)).peak_bytes
    asked = [0]

    def interrupt() -> bool:
        asked[0] += 1
        return True

    found = sweep(
        profile_of(graph), [plain, 1], ScheduleSearch, effort=SolveEffort.QUICK, interrupt=interrupt
    )
    assert asked[0] > 0
    assert isinstance(found[plain], MemoryPlan)
    assert str(found[1]) == "interrupted before this budget's turn"
