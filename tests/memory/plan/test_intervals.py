"""Retention intervals against an exhaustive search, and from a schedule to a faster one."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._native import ScheduleSearch
from headrace.memory.plan.draft import Draft
from headrace.memory.plan.intervals import improved
from headrace.memory.plan.search import Search
from headrace.memory.plan.stages import Stages
from headrace.memory.plan.verify import verify
from headrace.solver import Parameters
from tests.memory.graphs import random_graph
from tests.memory.plan.oracle import fastest
from tests.memory.plan.test_programs import budget_of
from tests.waiting import ENDLESS_S


@settings(max_examples=25)
@given(st.randoms(use_true_random=False), st.booleans())
def test_intervals_find_the_optimum(random: Random, ways: bool) -> None:
    graph = random_graph(random, 6, ways=ways)
    budget, stages = budget_of(graph, random), Stages(graph)
    best = fastest(graph, budget)
    if best is None:
        return
    search = Search(stages, budget, ScheduleSearch)
    start = search.simulated(Draft.plain(stages))
    assert start is not None
    draft = improved(stages, budget, start, Parameters(limit_s=ENDLESS_S), spare=3)
    in_place = any(
        graph.operators[step.operator].implementations[step.implementation].overwrites is not None
        for step in best.schedule.steps
    )
    runs = Counter(step.operator for step in best.schedule.steps)
    if draft is None:
        assert in_place or max(runs.values()) > 4
        return
    time = verify(graph, draft.schedule(), budget).time_us
    assert time >= best.time_us - 1e-6
    if not in_place and max(runs.values()) <= 4:
        assert time == pytest.approx(best.time_us)
