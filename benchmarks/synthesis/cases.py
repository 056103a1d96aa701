"""The rows of the published table: topology, collective, size, and published times."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.collectives.demand import Collective
from headrace.topology import Topology, presets, subgraph

MB = 1_000_000
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row.

    Attributes
    ----------
    name : one word, part of its bars' names.
    make : builds the topology, links cut down to those that the row is stated for.
    total_bytes : of the whole data buffer.
    chunks : chunks a block if the row fixes them, else None.
    taccl_us, other_us : times of TACCL and of the best other open tool.
    stated_bound_us : the bound as published; the benchmark recomputes it.
    gap : allowed above the bound in the table model.
    """

    name: str
    make: Callable[[], Topology]
    collective: Collective
    total_bytes: int
    stated_bound_us: float
    chunks: int | None = None
    taccl_us: float | None = None
    other_us: float | None = None
    gap: float = 0.02


def between_hosts(topology: Topology, allowed: dict[int, tuple[int, ...]]) -> Topology:
    """Keep, of the links between hosts, those from local rank i to the local ranks allowed[i]."""
    size = topology.ranks // len(topology.hosts)
    return subgraph(
        topology,
        [
            index
            for index, link in enumerate(topology.links)
            if topology.rank_host[link.src] == topology.rank_host[link.dst]
            or link.dst % size in allowed.get(link.src % size, ())
        ],
    )


def ndv2(nodes: int) -> Topology:
    """NDv2 with TACCL's 1 MB costs; between nodes only GPU 0 sends, to GPU 1."""
    topology = presets.ndv2_taccl_1mb(nodes)
    return topology if nodes == 1 else between_hosts(topology, {0: (1,)})


def dgx2_sk1(nodes: int) -> Topology:
    """DGX-2 with TACCL's 1 MB costs and the links of its sketch sk1: odd GPU to the even before."""
    return between_hosts(presets.dgx2_taccl_1mb(nodes), {i: (i - 1,) for i in range(1, 16, 2)})


def torus(side: int) -> Topology:
    """A square torus of 50 GiB/s links of 0.5 us, all local: the table model leaves alpha out."""
    made = presets.torus((side, side))
    return replace(made, hosts=("torus",), rank_host=(0,) * made.ranks)


CASES = (
    Case(
        name="ndv2-x1-allgather-unsplit",
        make=lambda: ndv2(1),
        collective=Collective.ALLGATHER,
        total_bytes=8 * MB,
        stated_bound_us=69.0,
        chunks=1,
        taccl_us=92.0,
        other_us=69.0,
    ),
    Case(
        name="ndv2-x1-allgather",
        make=lambda: ndv2(1),
        collective=Collective.ALLGATHER,
        total_bytes=8 * MB,
        stated_bound_us=53.67,
        other_us=53.67,
    ),
    Case(
        name="ndv2-x2-allgather",
        make=lambda: ndv2(2),
        collective=Collective.ALLGATHER,
        total_bytes=16 * MB,
        stated_bound_us=840.0,
        taccl_us=968.0,
        other_us=916.0,
        gap=0.025,
    ),
    Case(
        name="dgx2-x1-allgather",
        make=lambda: presets.dgx2_taccl_1mb(1),
        collective=Collective.ALLGATHER,
        total_bytes=16 * MB,
        stated_bound_us=120.0,
        taccl_us=120.0,
    ),
    Case(
        name="dgx2-x2-allgather-sk1",
        make=lambda: dgx2_sk1(2),
        collective=Collective.ALLGATHER,
        total_bytes=64 * MB,
        stated_bound_us=496.0,
        taccl_us=563.8,
    ),
    Case(
        name="dgx2-x2-allgather",
        make=lambda: presets.dgx2_taccl_1mb(2),
        collective=Collective.ALLGATHER,
        total_bytes=64 * MB,
        stated_bound_us=477.8,
    ),
    Case(
        name="ndv2-x1-all-to-all",
        make=lambda: ndv2(1),
        collective=Collective.ALL_TO_ALL,
        total_bytes=8 * MB,
        stated_bound_us=122.67,
        taccl_us=161.0,
    ),
    Case(
        name="ndv2-x2-all-to-all",
        make=lambda: ndv2(2),
        collective=Collective.ALL_TO_ALL,
        total_bytes=16 * MB,
        stated_bound_us=6720.0,
        taccl_us=6848.0,
    ),
)
"""The table, in its order."""

TORI = tuple(
    Case(
        name=f"torus-{side}x{side}-allgather",
        make=lambda side=side: torus(side),
        collective=Collective.ALLGATHER,
        total_bytes=side * side * MIB,
        stated_bound_us=(side * side - 1) / 4 * MIB / (50 * 1024**3) * 1e6,
        other_us=other,
    )
    for side, other in ((4, 80.7), (8, 340.5), (16, 1322.0))
)
"""The torus line beneath it; others were charged alpha on every send."""
