"""The route model: it accepts what is known to be right, and finds what enumeration finds."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.synthesis.random_topologies import random_topology as sparse_topology
from headrace.collectives.demand import STANDARD, Collective, Demand
from headrace.collectives.plan.generators.taccl.route import encode_routes, solve_routes
from headrace.collectives.plan.generators.taccl.router import (
    MatchingWeights,
    lower_time,
    matched_trees,
    priced_trees,
)
from headrace.collectives.plan.generators.taccl.routing import RouteProblem
from headrace.collectives.plan.generators.taccl.sketch.logical import apply_sketch, whole
from headrace.collectives.plan.generators.taccl.sketch.named import NAMED
from headrace.collectives.plan.generators.taccl.sketch.sketch import (
    Intranode,
    Policy,
    Sketch,
    Strategy,
)
from headrace.collectives.plan.ir.chunks import deliveries_of
from headrace.solver import Parameters, Proved
from headrace.topology import Topology, presets, transposed
from tests.collectives.plan.tiny import problem_on, random_topology, trees_of
from tests.solver.oracle import violation
from tests.waiting import ENDLESS_S

HANGING = Path(__file__).parents[5] / "benchmarks" / "synthesis" / "hang.topology"
EXACT = Parameters(gap=0.0, limit_s=ENDLESS_S)


def tree_array(problem: RouteProblem, parents: dict[tuple[int, int], int]) -> np.ndarray:
    """Trees from (chunk, rank) -> the rank that it comes from."""
    index = problem.logical.topology.link_index
    trees = np.full((problem.deliveries.chunks, problem.deliveries.ranks), -1, np.int32)
    for (chunk, rank), source in parents.items():
        trees[chunk, rank] = index[source, rank]
    return trees


def known(topology: Topology, shape: str) -> tuple[RouteProblem, np.ndarray]:
    n = topology.ranks
    demand = Demand(collective=Collective.ALLGATHER, ranks=n)
    problem = RouteProblem.of(whole(topology), deliveries_of(demand), 1.0)
    parent = {
        "ring": lambda chunk, rank: (rank - 1) % n,
        "direct": lambda chunk, rank: chunk,
        "tree": lambda chunk, rank: (chunk + ((rank - chunk) % n - 1) // 2) % n,
    }[shape]
    rows = {(c, r): parent(c, r) for c in range(n) for r in range(n) if c != r}
    return problem, tree_array(problem, rows)


@pytest.mark.parametrize("shape", ["ring", "direct", "tree"])
@pytest.mark.parametrize(
    "topology", [presets.uniform(4), presets.dgx2(1), presets.uniform(7, alpha_us=0.0)]
)
def test_known_algorithms_satisfy_every_constraint(topology: Topology, shape: str) -> None:
    problem, trees = known(topology, shape)
    value = lower_time(problem, trees)
    made = encode_routes(problem, value + 1e-6)
    values = made.values(trees)
    assert values is not None
    assert violation(made.model, values) < 1e-6
    assert np.array_equal(made.trees(values), trees)
    assert values[made.time] == value


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", list(NAMED))
@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.ALL_TO_ALL])
def test_greedy_routes_satisfy_every_constraint_of_a_sketch(
    name: str, collective: Collective
) -> None:
    sketch = NAMED[name](2)
    topology = presets.dgx2(2) if name.startswith("dgx2") else presets.ndv2(2)
    demand = Demand(collective=collective, ranks=topology.ranks, chunks=sketch.chunkup)
    problem = RouteProblem.of(apply_sketch(sketch, topology), deliveries_of(demand), 0.5)
    candidates = priced_trees(problem, rounds=1)
    if problem.broadcasting:
        candidates.append(matched_trees(problem, seed=1, weights=MatchingWeights())[0])
    for trees in candidates:
        made = encode_routes(problem, lower_time(problem, trees) + 1e-6)
        values = made.values(trees)
        assert values is not None, "the routes break a symmetry"
        assert violation(made.model, values) < 1e-6


def broken(problem: RouteProblem, trees: np.ndarray, what: str) -> np.ndarray:
    made = trees.copy()
    if what == "nothing sent":
        made[:] = -1
    elif what == "not delivered":
        made[0, 1] = -1
    elif what == "a circle":
        index = problem.logical.topology.link_index
        made[0, 1], made[0, 2] = index[2, 1], index[1, 2]
    return made


@pytest.mark.parametrize("what", ["nothing sent", "not delivered", "a circle"])
def test_what_is_no_algorithm_breaks_a_constraint(what: str) -> None:
    """The printed equations alone admit time 0 within a node: nothing forces delivery."""
    problem, trees = known(presets.uniform(4), "direct")
    made = encode_routes(problem, 1e7)
    values = made.values(broken(problem, trees, what))
    assert values is not None
    assert violation(made.model, values) > 1e-3


def test_what_was_not_received_is_not_sent_on() -> None:
    problem = problem_on(presets.ring(4), Collective.ALL_TO_ALL)
    chunk = 2  # from 0 to 2, over 1 or 3
    assert problem.deliveries.targets[chunk].tolist() == [False, False, True, False]
    trees = priced_trees(problem)[0]
    made = encode_routes(problem, 1e6)
    index = problem.logical.topology.link_index
    trees[chunk] = -1
    trees[chunk, 2] = index[1, 2]  # out of nowhere
    values = made.values(trees)
    assert values is not None
    assert violation(made.model, values) > 1e-3


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_the_optimum_is_that_of_enumeration(seed: int) -> None:
    collective = (Collective.ALLGATHER, Collective.ALL_TO_ALL, Collective.BROADCAST)[seed % 3]
    topology = random_topology(seed, ranks=4 if collective is Collective.BROADCAST else 3)
    problem = problem_on(topology, collective, chunks=1 + (seed % 2) * (seed % 3 == 2))
    every = [list(trees_of(problem, chunk)) for chunk in range(problem.deliveries.chunks)]
    best = min(lower_time(problem, np.stack(rows)) for rows in product(*every))
    greedy = priced_trees(problem)
    _, trees, result = solve_routes(problem, greedy, EXACT)
    assert result.proved is Proved.OPTIMAL
    assert trees is not None
    assert lower_time(problem, trees) == pytest.approx(best, rel=1e-5)
    assert result.objective == pytest.approx(best, rel=1e-5)
    assert lower_time(problem, greedy[0]) >= best - 1e-6


@pytest.mark.parametrize("name", ["ndv2-sk-1", "dgx2-sk-1"])
def test_tying_variables_is_the_same_as_equations(name: str) -> None:
    """The quotient's solution has every symmetry, and unfolds to routes of the full problem."""
    topology = presets.dgx2(2) if name.startswith("dgx2") else presets.ndv2(2)
    logical = apply_sketch(NAMED[name](2), topology)
    deliveries = deliveries_of(Demand(collective=Collective.ALLGATHER, ranks=topology.ranks))
    problem = RouteProblem.of(logical, deliveries, 1.0)
    starts = priced_trees(problem)
    made, trees, _ = solve_routes(problem, starts, Parameters(work=3))
    assert trees is not None
    assert made.model.variables < 0.7 * problem.allowed.sum()
    for _, links, chunks, bound in problem.images:
        ranks = problem.costs.dst
        inside = (trees >= 0) & bound[trees]
        rows, at = np.nonzero(inside)
        images = links[trees[rows, at]]
        assert np.array_equal(trees[chunks[rows], ranks[images]], images)


def test_policies_change_links_not_time() -> None:
    """gamma only breaks ties: uc-min uses few links of the switch, uc-max many, at equal time."""
    used: dict[Policy, int] = {}
    times: dict[Policy, float] = {}
    for policy in (Policy.MIN, Policy.MAX):
        intranode = Intranode(
            strategy=Strategy.SWITCH, switches=((0, 1, 2, 3),), policies=(policy,)
        )
        sketch = Sketch(name="mine", nodes=1, intranode=intranode)
        topology = replace(presets.uniform(4, alpha_us=0.0), hosts=("a",), rank_host=(0,) * 4)
        problem = problem_on(topology)
        problem = RouteProblem.of(apply_sketch(sketch, topology), problem.deliveries, 1.0)
        made, trees, result = solve_routes(problem, priced_trees(problem), EXACT)
        assert trees is not None
        used[policy] = len(np.unique(trees[trees >= 0]))
        times[policy] = lower_time(problem, trees)
        horizon = float(made.model.bounds()[1][made.time])
        spare = 1e-3 * horizon if policy is Policy.MIN else 0.0  # the policy's term, at most
        assert result.bound - spare <= times[policy] + 1e-6
    assert used[Policy.MIN] < used[Policy.MAX]
    assert times[Policy.MIN] == pytest.approx(times[Policy.MAX], rel=2e-3)


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_greedy_trees_reach_every_target(seed: int) -> None:
    topology = random_topology(seed, ranks=3 + seed % 6, hosts=1 + seed % 2, density=0.3)
    collective = STANDARD[seed % len(STANDARD)]
    n = topology.ranks
    demand = Demand(collective=collective, ranks=n, chunks=n if collective == "allreduce" else 2)
    used = transposed(topology) if collective in ("reduce", "allreduce") else topology
    problem = RouteProblem.of(whole(used), deliveries_of(demand), 1.0)
    found = priced_trees(problem)
    if problem.broadcasting:
        trees, starts, _ = matched_trees(problem, seed=seed, weights=MatchingWeights(noise=1.0))
        assert np.array_equal(np.isfinite(starts), trees >= 0)
        found.append(trees)
    for trees in found:
        assert (trees >= 0)[problem.deliveries.targets].all()
        assert problem.allowed[np.nonzero(trees >= 0)[0], trees[trees >= 0]].all()
        assert np.isfinite(lower_time(problem, trees))


def test_equal_seeds_give_equal_routes() -> None:
    problem = problem_on(presets.ndv2(1))
    first, second = (matched_trees(problem, seed=4, weights=MatchingWeights()) for _ in range(2))
    assert np.array_equal(first[0], second[0])
    assert first[2] == second[2]


@pytest.mark.parametrize("seed", [-1, 1, 4, 25, 31, 46])
def test_a_host_that_is_not_connected_inside_is_entered_more_than_once(seed: int) -> None:
    """Two-host topologies whose hosts are chains, not connected inside, hung the router for ever.

    It closed every other link into a host once one copy of a chunk was there; ranks that only such
    a link leads to then waited for a source that never holds the chunk.
    """
    topology = Topology.load(HANGING) if seed < 0 else sparse_topology(seed)
    for used in (topology, transposed(topology)):
        problem = problem_on(used)
        trees, starts, total = matched_trees(problem, seed=0, weights=MatchingWeights())
        assert (trees >= 0)[problem.deliveries.targets].all()
        assert np.isfinite(starts[trees >= 0]).all()
        assert np.isfinite(total)


def test_what_no_link_leads_to_is_left_out_of_the_trees() -> None:
    problem = problem_on(presets.uniform(4))
    problem.allowed[:, problem.costs.dst == 3] = False
    trees, _, total = matched_trees(problem, seed=0, weights=MatchingWeights())
    assert np.isfinite(total)
    assert (trees[0, 1:3] >= 0).all()
    assert (trees[:3, 3] < 0).all()
