"""Contiguity: the exact model and the dynamic program against trying every way to batch."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators.taccl.batch import (
    _makespan,
    best_batches,
    propose,
)
from headrace.collectives.plan.generators.taccl.order import order_messages
from headrace.collectives.plan.generators.taccl.router import priced_trees
from headrace.collectives.plan.generators.taccl.routing import RouteProblem
from headrace.collectives.plan.generators.taccl.schedule import (
    batched,
    encode_schedule,
    schedule_exactly,
)
from headrace.collectives.plan.generators.taccl.sketch.logical import apply_sketch
from headrace.collectives.plan.generators.taccl.sketch.named import NAMED
from headrace.collectives.plan.generators.taccl.work import (
    Work,
    WorkTimeline,
    list_schedule,
    merged,
    spreading,
)
from headrace.collectives.plan.ir.chunks import deliveries_of
from headrace.solver import Parameters, Proved, solve
from headrace.topology import presets
from tests.collectives.plan.generators.taccl.test_order import check
from tests.collectives.plan.tiny import problem_on, random_topology
from tests.solver.oracle import violation
from tests.waiting import ENDLESS_S

EXACT = Parameters(gap=0.0, limit_s=ENDLESS_S)


def runs(count: int) -> list[list[tuple[int, int]]]:
    """Every way to cut 0 .. count - 1 into runs."""
    made = []
    for size in range(count):
        for cuts in combinations(range(1, count), size):
            made.append(list(pairwise((0, *cuts, count))))
    return made


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=6),
    st.integers(0, 12),
    st.integers(1, 6),
)
@settings(max_examples=150)
def test_the_dynamic_program_is_optimal(rows: list, alpha: int, beta: int) -> None:
    release, tail = (np.array(column, float) for column in zip(*rows, strict=True))
    ways = runs(len(rows))
    best = min(_makespan(way, release, tail, alpha, beta) for way in ways)
    found = best_batches(release, tail, alpha=alpha, beta=beta)
    assert found in ways
    assert _makespan(found, release, tail, alpha, beta) == pytest.approx(best, rel=1e-5)


def strict(work: Work, order: list[int], batches: list[list[int]]) -> float:
    """End of `work` when every resource serves messages in `order`, batches as one."""
    joined = merged(work, batches)
    if not joined.is_acyclic:
        return float("inf")
    place = {at: rank for rank, at in enumerate(order)}
    dropped = {at for batch in batches for at in batch[1:]}
    first = [place[at] for at in range(work.size) if at not in dropped]
    before = [list(row) for row in joined.before]
    queues: dict[int, list[int]] = {}
    for at in sorted(range(joined.size), key=first.__getitem__):
        for resource, _ in joined.holds[at]:
            queues.setdefault(resource, []).append(at)
    start = [0.0] * joined.size
    for _ in range(joined.size + 1):
        old = list(start)
        for at in range(joined.size):
            ends = [start[other] + joined.lats[other] for other in before[at]]
            start[at] = max([start[at], *ends])
        for resource, queue in queues.items():
            for a, b in pairwise(queue):
                start[b] = max(start[b], start[a] + dict(joined.holds[a])[resource])
        if start == old:
            return max(s + lat for s, lat in zip(start, joined.lats, strict=True))
    return float("inf")


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_the_exact_model_finds_what_trying_every_way_finds(seed: int) -> None:
    topology = random_topology(seed, ranks=4, hosts=2, density=0.3)
    problem = problem_on(topology, (Collective.ALLGATHER, Collective.ALL_TO_ALL)[seed % 2])
    work = spreading(problem.costs, priced_trees(problem)[0])
    crossing = problem.logical.crossing
    base, _ = order_messages(work)
    made = encode_schedule(base, crossing, base.total_us + 1e-6)
    values = made.values([], base)
    assert violation(made.model, values) < 1e-6  # the heuristic schedule is a solution
    result = solve(made.model, EXACT)
    assert result.proved is Proved.OPTIMAL
    pairs = [(int(a), int(b)) for a, b in made.pairs]
    best = float("inf")
    for chosen in product((False, True), repeat=len(pairs)):
        on = {pair for pair, taken in zip(pairs, chosen, strict=True) if taken}
        batches: list[list[int]] = []
        for a, b in pairs:
            if (a, b) in on:
                run = next((row for row in batches if row[-1] == a), None)
                if run is None:
                    batches.append([a, b])
                else:
                    run.append(b)
        best = min(best, strict(work, base.order, batches))
    assert result.objective == pytest.approx(best, rel=1e-6)
    found, again = schedule_exactly(work, crossing, base, EXACT)
    check(found)
    assert again.objective == pytest.approx(best, rel=1e-6)
    assert found.total_us <= base.total_us + 1e-9


def case(name: str, collective: Collective, chunk_mb: float) -> tuple[RouteProblem, WorkTimeline]:
    topology = (presets.dgx2 if name.startswith("dgx2") else presets.ndv2)(2)
    sketch = NAMED[name](2)
    demand = Demand(collective=collective, ranks=topology.ranks, chunks=sketch.chunkup)
    problem = RouteProblem.of(apply_sketch(sketch, topology), deliveries_of(demand), chunk_mb)
    return problem, order_messages(spreading(problem.costs, priced_trees(problem)[0]))[0]


def test_travelling_together_pays_alpha_once() -> None:
    problem, base = case("ndv2-sk-1", Collective.ALL_TO_ALL, 0.001)
    made, found = batched(base, problem.logical.crossing)
    check(made)
    assert made.total_us < 0.6 * base.total_us
    assert found


@pytest.mark.sampled(4, of="long plans")
def test_the_running_count_needs_no_big_m() -> None:
    """With 5.17 as run[b] >= run[a] + beta + alpha (1 - joined) the root bound is nearly exact."""
    problem, base = case("ndv2-sk-1", Collective.ALL_TO_ALL, 1.0)
    made, _ = batched(base, problem.logical.crossing)
    _, result = schedule_exactly(base.work, problem.logical.crossing, made, Parameters(work=30))
    assert result.bound > 0.99 * made.total_us


def test_known_batches_satisfy_the_exact_model() -> None:
    problem, base = case("ndv2-sk-1", Collective.ALLGATHER, 0.01)
    crossing = problem.logical.crossing
    made, _ = batched(base, crossing)
    assert made.work.size < base.work.size
    number = {(base.work.link[at], base.work.chunks[at][0]): at for at in range(base.work.size)}
    members = [
        [number[made.work.link[at], chunk] for chunk in made.work.chunks[at]] for at in made.order
    ]
    start = [0.0] * base.work.size
    for at, row in zip(made.order, members, strict=True):
        for message in row:
            start[message] = made.start_us[at]
    order = [message for row in members for message in row]
    single = WorkTimeline(work=base.work, start_us=start, order=order, total_us=made.total_us)
    model = encode_schedule(single, crossing, base.total_us)
    values = model.values([row for row in members if len(row) > 1], single)
    assert violation(model.model, values) < 1e-6
    assert model.batches(values) == [row for row in members if len(row) > 1] or sorted(
        map(sorted, model.batches(values))
    ) == sorted(sorted(row) for row in members if len(row) > 1)


def test_batches_that_tie_a_knot_are_seen() -> None:
    problem = problem_on(random_topology(5, ranks=4, hosts=2, density=0.0), Collective.ALLGATHER)
    work = spreading(problem.costs, priced_trees(problem)[0])
    chain = next((a, b) for a in range(work.size) for b in work.after[a])
    assert (
        not merged(work, [[chain[0], chain[1]]]).is_acyclic
        or work.link[chain[0]] == work.link[chain[1]]
    )


def test_proposals_are_runs_of_one_link() -> None:
    problem, base = case("ndv2-sk-1", Collective.ALLGATHER, 0.01)
    names = []
    for name, batches in propose(base, problem.logical.crossing):
        names.append(name)
        for batch in batches:
            assert len({base.work.link[at] for at in batch}) == 1
            assert len(set(batch)) == len(batch) > 1
    assert {"program", "runs of 2", "runs of 8"} <= set(names)


def test_nothing_to_batch_changes_nothing() -> None:
    problem = problem_on(random_topology(7, ranks=4), Collective.ALLGATHER)
    work = spreading(problem.costs, priced_trees(problem)[0])
    base = list_schedule(work, [0.0] * work.size)
    made, found = batched(base, problem.logical.crossing)
    assert made is base
    assert not found
