"""Programs to export: templates, and random ways to carry chunks."""

import random
from collections.abc import Iterator

from headrace.collectives.demand import ROOTED, STANDARD, Collective, Demand
from headrace.collectives.export.algorithm import Algorithm
from headrace.collectives.export.threadblocks import Lowering, Target
from headrace.collectives.plan.ir.chunks import deliveries_of, realize
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.program import Program, Schedule, Transfer
from tests.collectives.plan.random_sends import random_sends, random_topology
from tests.collectives.plan.template_cases import SERVES, serves, variants

CARRIED = tuple(
    c
    for c in STANDARD
    if c not in (Collective.ALLREDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER)
)


def lowered(program: Program, target: Target, *, store_all: bool = False) -> Algorithm:
    """Return the threadblocks that run `program`, however long."""
    return Lowering.of(program, target, store_all=store_all).algorithm()


def template_programs(ranks: int) -> Iterator[tuple[str, Program]]:
    """Every collective by every template that serves it, one and several chunks a block."""
    for collective in STANDARD:
        root = ranks - 1 if collective in ROOTED else 0
        for chunks in sorted({1, ranks}):
            demand = Demand(collective=collective, ranks=ranks, chunks=chunks, root=root)
            for name in SERVES:
                if serves(name, demand):
                    for make in variants(name, ranks)[-1:]:
                        yield f"{name} {collective} {ranks}x{chunks}", lower(make(demand))


def random_program(seed: int) -> Program:
    """Chunks carried at random, several to a message; or a random tree to combine them."""
    rng = random.Random(seed)
    ranks = rng.randrange(2, 6)
    collective = rng.choice(STANDARD)
    root = rng.randrange(ranks) if collective in ROOTED else 0
    chunks = rng.choice((1, 2, 3, 5))
    demand = Demand(collective=collective, ranks=ranks, chunks=chunks, root=root)
    if collective in CARRIED:
        sends = random_sends(rng, random_topology(rng, ranks), deliveries_of(demand))
        return lower(realize(demand, sends))
    return lower(random_reduction(rng, demand))


def random_reduction(rng: random.Random, demand: Demand) -> Schedule:
    """Combine every slot along a random tree, now and then by way of scratch, and spread it."""
    ranks, slots = demand.ranks, demand.slots
    queues: list[list[Transfer]] = []
    for slot in range(slots):
        owner = {
            Collective.REDUCE: demand.root,
            Collective.REDUCE_SCATTER: slot // demand.chunks,
        }.get(demand.collective, rng.randrange(ranks))
        others = [rank for rank in range(ranks) if rank != owner]
        rng.shuffle(others)
        queue: list[Transfer] = []
        for k, rank in enumerate(others):
            parent = rng.choice([owner, *others[k + 1 :]])
            if rng.random() < 0.25:
                queue.append(Transfer(rank, parent, slot, slots + slot, channel=slot % 2))
                queue.append(Transfer(parent, parent, slots + slot, slot, reduce=True))
            else:
                queue.append(Transfer(rank, parent, slot, slot, reduce=True, channel=slot % 2))
        if demand.collective is Collective.ALLREDUCE:
            for k, rank in enumerate(others):
                source = rng.choice([owner, *others[:k]])
                queue.append(Transfer(source, rank, slot, slot, channel=slot % 2))
        queues.append(queue)
    transfers: list[Transfer] = []
    while any(queues):
        queue = rng.choice([queue for queue in queues if queue])
        transfers.append(queue.pop(0))
    return Schedule.of(demand, transfers, scratch_slots=slots)
