"""Networks that change, and what a job would see of its plan on them, by simulation."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from headrace.collectives.adapt.act.finetune import Finetune
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import EXECUTOR
from headrace.collectives.plan.generators.templates.two_level.masters import Masters
from headrace.collectives.plan.generators.templates.two_level.schedule import two_level
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.program import Direction, Program
from headrace.topology import Topology


def imbalance(sent_bytes: np.ndarray) -> float:
    """Return the most bytes that a rank sends over the least (PLink 5.6).

    Infinite if some rank sends nothing while others do; 1 if none does.
    """
    each = np.nansum(sent_bytes, axis=1)
    if each.max(initial=0.0) == 0.0:
        return 1.0
    return float(each.max() / each.min()) if each.min() > 0 else float("inf")


def slower(topology: Topology, names: tuple[str, ...], factor: float) -> Topology:
    """`topology` with the named shared capacities at `factor` of their rate, and their links."""
    links = list(topology.links)
    shared = list(topology.shared)
    for index, capacity in enumerate(shared):
        if capacity.name in names:
            beta = capacity.beta_us_per_mb / factor
            shared[index] = replace(capacity, beta_us_per_mb=beta)
            for link in capacity.links:
                most = max(beta, links[link].beta_us_per_mb)
                links[link] = replace(links[link], beta_us_per_mb=most)
    assert topology.shared != tuple(shared)
    return replace(topology, links=tuple(links), shared=tuple(shared))


def slow_host(topology: Topology, rank: int, factor: float) -> Topology:
    """One host's NIC cut, both ways."""
    return slower(topology, (f"nic-in-{rank}", f"nic-out-{rank}"), factor)


def slow_uplink(topology: Topology, rack: int, factor: float) -> Topology:
    """One rack's uplink cut, both ways."""
    return slower(topology, (f"uplink-in-{rack}", f"uplink-out-{rack}"), factor)


def program_of(masters: Masters) -> Program:
    """The allreduce by these masters."""
    demand = Demand(collective=Collective.ALLREDUCE, ranks=masters.ranks, chunks=masters.chunks)
    return lower(two_level(demand, masters))


def seen(
    masters: Masters, topology: Topology, total_bytes: int
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Time in us, and (n, n) bytes sent, bytes/s while busy (nan if never), round trips in us."""
    program, n = program_of(masters), topology.ranks
    found = simulate(program, topology, total_bytes, model=EXECUTOR, max_pieces=12000)
    lanes, lane = program.lanes, program.steps["lane"]
    sent, busy = np.zeros((n, n)), np.zeros((n, n))
    chunk_bytes = program.demand.chunk_bytes(total_bytes)
    for index in np.flatnonzero(lanes["direction"] == Direction.SEND):
        pair = lanes["rank"][index], lanes["peer"][index]
        mine = np.flatnonzero(lane == index)
        sent[pair] += chunk_bytes * program.steps["count"][mine].sum()
        end = 0.0
        for start, finish in zip(found.start_us[mine], found.finish_us[mine], strict=True):
            busy[pair] += max(0.0, finish - max(start, end))
            end = max(end, finish)
    rate = np.divide(sent * 1e6, busy, out=np.full((n, n), np.nan), where=busy > 0)
    rtt = np.full((n, n), np.nan)
    for link in topology.links:
        back = topology.links[topology.link_index[link.dst, link.src]]
        rtt[link.src, link.dst] = link.alpha_us + back.alpha_us
    return found.total_us, sent, rate, rtt


def tuned(
    masters: Masters,
    topology: Topology,
    total_bytes: int,
    finetune: Finetune,
    bandwidth: Callable[[np.ndarray], np.ndarray],
    most: int = 10,
) -> list[tuple[Masters, float, float]]:
    """Run Finetune until it stops; (masters, us, imbalance) before and after each."""
    story: list[tuple[Masters, float, float]] = []
    for _ in range(most + 1):
        time_us, sent, rate, rtt = seen(masters, topology, total_bytes)
        story.append((masters, time_us, imbalance(sent)))
        better = finetune.step(masters, sent, bandwidth(rate), rtt, step_us=time_us)
        if better is None:
            break
        masters = better
    return story
