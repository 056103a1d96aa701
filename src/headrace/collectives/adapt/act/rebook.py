"""Plan books for the network as it is now: masters moved, or replanned. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.book import Entry, PlanBook
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.cost.pieces import absent_link
from headrace.collectives.plan.generators.templates.two_level.masters import (
    Masters,
    masters_from_weights,
    spread_masters,
)
from headrace.collectives.plan.generators.templates.two_level.schedule import chunk_count, two_level
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.locality import RankGroups
from headrace.collectives.plan.plan import Candidate, Plan
from headrace.collectives.plan.portfolio import predict_us
from headrace.collectives.plan.verify import Proof, verify
from headrace.collectives.program import Op, Program
from headrace.topology import Topology

QUICKTUNE, FINETUNE = "quicktune", "finetune"
"""Generator names of plans whose masters were moved."""

Call = tuple[Collective, int]
"""A collective and its bytes, as `Demand.chunk_bytes` counts them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RangeChoice:
    """Plan chosen for one range of sizes, and the one before.

    `before_us` is the prediction for the plan of generator `before` on the network as it is now,
    for the bytes that `entry.plan` was made for; infinite where there was no plan, or where it uses
    a link that the network no longer has.
    """

    entry: Entry
    before: str
    before_us: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Retuned:
    """A book for the network as it is now, and the choices by range."""

    book: PlanBook
    choices: tuple[RangeChoice, ...]


def moved(book: PlanBook, topology: Topology, masters: Masters, calls: Sequence[Call]) -> Retuned:
    """Return `book` with `masters` for the two-level allreduces that `calls` use.

    Parameters
    ----------
    masters : of any number of chunks; each plan gets as many as suit its size, divided alike.

    Raises
    ------
    ProgramError : if masters and topology are of different ranks.
    """
    entries: list[Entry] = []
    choices: list[RangeChoice] = []
    groups = masters.groups
    for entry in book.entries:
        used = [size for name, size in calls if name is entry.collective and _serves(entry, size)]
        total_bytes = max(used, default=entry.plan.total_bytes)
        now = _rescored(entry.plan, topology, total_bytes)
        if used and masters_of(entry.plan.program, groups) is not None:
            tuned = _by_masters(now, topology, masters, total_bytes, FINETUNE)
            entries.append(replace(entry, plan=tuned))
        else:
            entries.append(replace(entry, plan=now))
        if used:
            choices.append(
                RangeChoice(entry=entries[-1], before=now.generator, before_us=now.predicted_us)
            )
    moved_book = PlanBook(
        topology=topology,
        groups=book.groups,
        entries=tuple(entries),
        provenance={**book.provenance, "adapted_from": book.digest, "topology": topology.digest},
    )
    return Retuned(book=moved_book, choices=tuple(choices))


def replanned(book: PlanBook, fresh: PlanBook, masters: Masters | None) -> Retuned:
    """Return the best plan for every range of `fresh`: its own, that of `book`, or by `masters`.

    Parameters
    ----------
    fresh : planned for the network as it is now.
    masters : for allreduces; None: there are none.
    """
    topology = fresh.topology
    choices: list[RangeChoice] = []
    for entry in fresh.entries:
        size = entry.plan.total_bytes
        old = book.choose(entry.collective, size, entry.root)
        if old is None:
            choices.append(RangeChoice(entry=entry, before="nothing", before_us=float("inf")))
            continue
        candidates, before_us = [entry.plan], float("inf")
        if absent_link(old.program, topology) is None:
            now = _rescored(old, topology, size)
            candidates.insert(0, now)
            before_us = now.predicted_us
            if masters is not None and entry.collective is Collective.ALLREDUCE:
                candidates.append(_by_masters(now, topology, masters, size, QUICKTUNE))
        best = min(candidates, key=lambda plan: plan.predicted_us)
        choices.append(
            RangeChoice(entry=replace(entry, plan=best), before=old.generator, before_us=before_us)
        )
    rescored = [
        replace(entry, plan=_rescored(entry.plan, topology, entry.plan.total_bytes))
        for entry in book.entries
        if fresh.choose(entry.collective, entry.plan.total_bytes, entry.root) is None
    ]
    entries = [choice.entry for choice in choices] + rescored
    adapted = replace(
        fresh,
        entries=tuple(sorted(entries, key=lambda e: (e.collective, e.root, e.from_bytes))),
        provenance={**fresh.provenance, "adapted_from": book.digest},
    )
    return Retuned(book=adapted, choices=tuple(choices))


def book_masters(
    book: PlanBook, sizes: Mapping[int, int], *, spread: bool = True
) -> Masters | None:
    """Return the masters of the plan that moves most bytes, or spread ones if it has none.

    Parameters
    ----------
    sizes : bytes of the allreduces of a step, and how often each is called.
    spread : False: None if it has none.

    Returns
    -------
    Masters | None
        None if the book has no plan for these sizes.
    """
    serving: dict[int, tuple[int, Plan]] = {}
    for size, count in sizes.items():
        plan = book.choose(Collective.ALLREDUCE, size)
        if plan is not None:
            moved, _ = serving.get(id(plan), (0, plan))
            serving[id(plan)] = (moved + size * count, plan)
    if not serving:
        return None
    _, plan = max(serving.values(), key=lambda served: served[0])
    largest = max(s for s in sizes if book.choose(Collective.ALLREDUCE, s) is plan)
    chunks = chunk_count(largest, book.topology.ranks)
    groups = book.groups or (tuple(range(book.topology.ranks)),)
    masters = masters_of(plan.program, groups)
    if masters is not None:
        return like(masters, chunks)
    return spread_masters(groups, chunks) if spread else None


def masters_of(program: Program, groups: RankGroups) -> Masters | None:
    """Return the masters of a two-level allreduce; None if `program` is none.

    They follow from the reductions: every rank but the global master sends a chunk to one other,
    those of a group to its local master, and local masters to the global one.
    """
    demand = program.demand
    chunks, n = demand.slots, demand.ranks
    if demand.collective is not Collective.ALLREDUCE or program.scratch_slots:
        return None
    steps, lanes = program.steps, program.lanes
    taken = steps["op"] == Op.RECV_REDUCE
    lane = steps["lane"][taken]
    count = steps["count"][taken]
    slot = np.repeat(steps["slot"][taken], count) + _within(count)
    into = np.repeat(lanes["rank"][lane], count)
    source = np.repeat(lanes["peer"][lane], count)
    parent = np.full((chunks, n), -1, np.int32)
    parent[slot, source] = into
    if len(slot) != chunks * (n - 1) or (parent >= 0).sum() != chunks * (n - 1):
        return None
    top = (parent < 0).argmax(axis=1).astype(np.int32)
    local = np.empty((chunks, len(groups)), np.int32)
    for index, group in enumerate(groups):
        members = np.array(group, np.int32)
        leaves = ~np.isin(parent[:, members], members)  # sends on to another group, or not at all
        if not (leaves.sum(axis=1) == 1).all():
            return None
        local[:, index] = members[leaves.argmax(axis=1)]
        others = parent[:, members][~leaves]
        if not (others == np.repeat(local[:, index], len(members) - 1)).all():
            return None
    expected_parent = parent[np.arange(chunks)[:, None], local]
    if not ((expected_parent == top[:, None]) | (local == top[:, None])).all():
        return None
    return Masters(groups=groups, local_master=local, global_master=top)


def like(masters: Masters, chunks: int) -> Masters:
    """Return masters of another number of chunks, divided as `masters` are."""
    if chunks == masters.chunks:
        return masters
    tops = np.bincount(masters.group_of[masters.global_master], minlength=len(masters.groups))
    return masters_from_weights(
        masters.groups, chunks, group_weights=tops, rank_weights=masters.local_counts
    )


def calls_us(
    book: PlanBook, topology: Topology, calls: Sequence[Call], plan_us: dict[tuple[str, int], float]
) -> float | None:
    """Return the predicted time of `calls`, one after another, by the plans of `book`.

    None if the book has no plan for one of them.

    Parameters
    ----------
    plan_us : predictions on this topology by (program's digest, bytes); added to.
    """
    total = 0.0
    for collective, total_bytes in calls:
        plan = book.choose(collective, total_bytes)
        if plan is None:
            return None
        key = (plan.proof.program_digest, total_bytes)
        if key not in plan_us:
            plan_us[key] = predict_us(plan.program, topology, total_bytes, plan.model)
        total += plan_us[key]
    return total


def _within(counts: np.ndarray) -> np.ndarray:
    """Return 0, 1, ... for every count, one after another."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


def _serves(entry: Entry, size: int) -> bool:
    return entry.from_bytes <= size and (entry.to_bytes is None or size < entry.to_bytes)


def _rescored(plan: Plan, topology: Topology, total_bytes: int) -> Plan:
    """Return the same program's plan for another topology or size, with no candidates."""
    return _plan(plan, plan.generator, plan.program, plan.proof, topology, total_bytes)


def _by_masters(
    plan: Plan, topology: Topology, masters: Masters, total_bytes: int, generator: str
) -> Plan:
    """Return the allreduce by `masters`, a candidate to replace `plan`."""
    n = topology.ranks
    chunks = chunk_count(total_bytes, n)
    demand = Demand(collective=Collective.ALLREDUCE, ranks=n, chunks=chunks)
    program = lower(two_level(demand, like(masters, chunks)))
    moved = _plan(plan, generator, program, verify(program), topology, total_bytes)
    return replace(
        moved,
        candidates=tuple(
            Candidate(
                generator=origin.generator,
                chunks=origin.program.demand.chunks,
                predicted_us=origin.predicted_us,
            )
            for origin in (moved, plan)
        ),
        why="masters moved to where the network is faster",
    )


def _plan(
    before: Plan,
    generator: str,
    program: Program,
    proof: Proof,
    topology: Topology,
    total_bytes: int,
) -> Plan:
    return Plan(
        program=program,
        generator=generator,
        total_bytes=total_bytes,
        topology=topology,
        model=before.model,
        predicted_us=predict_us(program, topology, total_bytes, before.model),
        bound=lower_bound(topology, program.demand, total_bytes),
        proof=proof,
    )
