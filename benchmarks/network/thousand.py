"""A thousand hosts: from measurements of all pairs to a proven plan, stage by stage."""

import time
from dataclasses import dataclass, field

import numpy as np

from benchmarks.instruments.affinity import physical_affinity
from benchmarks.instruments.grouping import aggregation_time
from benchmarks.instruments.network_table import NetworkTable
from benchmarks.instruments.simulated_network import nested_positions, simulate_network
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.measure.embed.clusters import candidate_groups
from headrace.collectives.measure.embed.embedding import embed
from headrace.collectives.measure.racks.partition import Grouping
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.generators.templates.two_level.fit import fitted_masters
from headrace.collectives.plan.generators.templates.two_level.schedule import two_level
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.topology import Link, SharedCapacity, Topology, beta_from_bytes_per_s

CHUNKS = 128
"""Of the plan's vector: with groups of about 32 hosts each masters about four of them locally."""

TOTAL_BYTES = 100_000_000  # a ResNet-50's gradients, as in PLink 5.4


@dataclass(kw_only=True)
class Stages:
    """Results, seconds of every stage, and processor seconds of all."""

    hosts: int
    processor_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float | int | str] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


def plan_network(
    hosts: int = 1024, units: tuple[int, ...] = (1, 2, 4, 8, 32), *, chunks: int = CHUNKS
) -> Stages:
    """Generate measurements of `hosts`, then embed, group, plan, prove and simulate an allreduce.

    Generating is not timed: it stands for the probes.
    """
    table = simulate_network(nested_positions(hosts, units, seed=7), seed=7)
    assert table.bandwidth is not None
    stages = Stages(hosts=hosts)
    clock, processor = time.monotonic(), time.process_time()

    def done(stage: str) -> None:
        nonlocal clock
        now = time.monotonic()
        stages.seconds[stage] = round(now - clock, 2)
        clock = now

    distances, known = table.distances(latency=True, bandwidth=True)
    embedding = embed(distances, known=known, restarts=2)
    done("embed")
    best, *_ = candidate_groups(
        table.bandwidth,
        lambda groups: aggregation_time(groups, table.bandwidth),
        points=embedding.coordinates,
    )
    done("group")
    topology = measured_topology(table, best.groups)
    done("topology")
    masters = fitted_masters(topology, best.groups, chunks)
    demand = Demand(collective=Collective.ALLREDUCE, ranks=hosts, chunks=chunks)
    program = lower(two_level(demand, masters))
    done("plan")
    proof = verify(program)
    done("prove")
    predicted = simulate(program, topology, TOTAL_BYTES)
    done("simulate")
    stages.processor_s = round(time.process_time() - processor, 2)
    assert proof.program_digest == program.digest
    sizes = sorted(map(len, best.groups))
    stages.figures.update(
        paia_raw=physical_affinity(distances, table.positions).accuracy,
        paia_embedded=physical_affinity(embedding.distances(), table.positions).accuracy,
        dimensions=embedding.coordinates.shape[1],
        groups=len(best.groups),
        sizes=f"{sizes[0]} to {sizes[-1]}",
        made_by=best.made_by,
        steps=len(program.steps["op"]),
        predicted_ms=predicted.total_us / 1e3,
    )
    return stages


def measured_topology(table: NetworkTable, groups: Grouping) -> Topology:
    """Return the topology of the medians of each kind of link (same two groups).

    A host's NIC is as fast as the fastest of its links.
    """
    assert table.latency_us is not None
    assert table.bandwidth is not None
    n = table.hosts
    alpha, rate = np.empty((n, n)), np.empty((n, n))
    for here in groups:
        for there in groups:
            block = np.ix_(here, there)
            if here == there and len(here) == 1:
                continue
            alpha[block] = np.nanmedian(table.latency_us[block]) / 2
            rate[block] = np.nanmedian(table.bandwidth[block])
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    links = tuple(
        Link(src=s, dst=d, alpha_us=a, beta_us_per_mb=b)
        for s, d, a, b in zip(
            src.tolist(),
            dst.tolist(),
            alpha[src, dst].tolist(),
            (1e12 / rate[src, dst]).tolist(),
            strict=True,
        )
    )
    np.fill_diagonal(rate, 0.0)
    index = np.arange(len(links)).reshape(n, n - 1)
    into = [tuple(np.flatnonzero(dst == host).tolist()) for host in range(n)]
    nics = [beta_from_bytes_per_s(value) for value in rate.max(axis=1).tolist()]
    shared = tuple(
        SharedCapacity(name=f"nic-{way}-{host}", links=mine[host], beta_us_per_mb=nics[host])
        for way, mine in (("out", [tuple(row) for row in index.tolist()]), ("in", into))
        for host in range(n)
    )
    return Topology(
        name=table.name,
        hosts=tuple(f"host{host}" for host in range(n)),
        rank_host=tuple(range(n)),
        links=links,
        shared=shared,
    )
