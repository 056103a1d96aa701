"""Tiny networks and every way to route over them: what solvers and heuristics are held against."""

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators.taccl.routing import RouteProblem
from headrace.collectives.plan.generators.taccl.sketch.logical import whole
from headrace.collectives.plan.ir.chunks import deliveries_of
from headrace.topology import Link, SharedCapacity, Topology


def random_topology(seed: int, ranks: int = 3, hosts: int = 1, density: float = 1.0) -> Topology:
    """A ring both ways, chords at random, costs at random, now and then a shared port."""
    rng = np.random.default_rng(seed)
    ring = {(s, (s + way) % ranks) for s in range(ranks) for way in (1, -1)}
    rest = [(s, d) for s, d in product(range(ranks), repeat=2) if s != d and (s, d) not in ring]
    pairs = sorted(ring | {pair for pair in rest if rng.random() < density})
    links = tuple(
        Link(src=s, dst=d, alpha_us=float(alpha), beta_us_per_mb=float(beta))
        for (s, d), alpha, beta in zip(
            pairs, rng.integers(0, 4, len(pairs)), rng.integers(1, 9, len(pairs)), strict=True
        )
    )
    shared: list[SharedCapacity] = []
    for rank in range(ranks):
        mine = tuple(at for at, pair in enumerate(pairs) if pair[0] == rank)
        if rng.random() < 0.5 and len(mine) > 1:
            beta = float(rng.integers(1, 6))
            shared.append(SharedCapacity(name=f"out-{rank}", links=mine, beta_us_per_mb=beta))
    return Topology(
        name=f"random-{seed}",
        hosts=tuple(f"h{host}" for host in range(hosts)),
        rank_host=tuple(rank * hosts // ranks for rank in range(ranks)),
        links=links,
        shared=tuple(shared),
    )


def problem_on(
    topology: Topology, collective: Collective = Collective.ALLGATHER, chunks: int = 1
) -> RouteProblem:
    """A routing problem without a sketch, chunks of 1 MB."""
    demand = Demand(collective=collective, ranks=topology.ranks, chunks=chunks)
    return RouteProblem.of(whole(topology), deliveries_of(demand), 1.0)


def trees_of(problem: RouteProblem, chunk: int) -> Iterator[np.ndarray]:
    """Every tree over allowed links that brings `chunk` where it is wanted, and nowhere else."""
    costs, n = problem.costs, problem.deliveries.ranks
    origin, wanted = int(problem.deliveries.origin[chunk]), problem.deliveries.targets[chunk]
    others = [r for r in range(n) if r != origin and not wanted[r]]
    for size in range(len(others) + 1):
        for relays in combinations(others, size):
            ranks = sorted({*np.flatnonzero(wanted).tolist(), *relays})
            into = [
                [at for at in np.flatnonzero(problem.allowed[chunk]).tolist()
                 if costs.dst[at] == rank and (costs.src[at] in ranks or costs.src[at] == origin)]
                for rank in ranks
            ]  # fmt: skip
            for chosen in product(*into):
                tree = np.full(n, -1, np.int32)
                tree[ranks] = chosen
                feeds = {int(costs.src[at]) for at in chosen}
                if rooted(problem, tree, origin) and set(relays) <= feeds:
                    yield tree


def rooted(problem: RouteProblem, tree: np.ndarray, origin: int) -> bool:
    for rank in np.flatnonzero(tree >= 0).tolist():
        at, steps = rank, 0
        while at != origin and steps <= len(tree):
            at, steps = int(problem.costs.src[tree[at]]), steps + 1
        if at != origin:
            return False
    return True
