"""Random topologies, groups and roots: whatever a generator of the portfolio makes is proven."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import ROOTED, STANDARD, Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.request import Request
from headrace.collectives.plan.verify import verify
from headrace.topology import Link, Topology
from tests.collectives.plan.chaos import misbehaves

_RUN_UP_TO_STEPS = 300

_MOVES_AS_A_WHOLE = {Collective.ALLREDUCE, Collective.REDUCE, Collective.BROADCAST}
_BY_BLOCK = {Collective.ALLGATHER, Collective.REDUCE_SCATTER}
SERVES: dict[str, set[Collective]] = {
    "direct": set(STANDARD),
    "full_exchange": {Collective.ALLREDUCE},
    "recursive_doubling": {Collective.ALLREDUCE},
    "halving_doubling": {Collective.ALLREDUCE} | _BY_BLOCK,
    "ring": _MOVES_AS_A_WHOLE | _BY_BLOCK,
    "double_binary_tree": _MOVES_AS_A_WHOLE,
    "hierarchical": _MOVES_AS_A_WHOLE | _BY_BLOCK,
    "hierarchical_even": {Collective.ALLREDUCE},
    "two_level": {Collective.ALLREDUCE},
    "exchange": {Collective.ALLREDUCE},
}


@st.composite
def _topologies(draw: st.DrawFn) -> Topology:
    """Ranks on hosts in any order, a link each way between all, of two speeds."""
    hosts = draw(st.integers(1, 4))
    rank_host = tuple(draw(st.lists(st.integers(0, hosts - 1), min_size=1, max_size=9)))
    slow = draw(st.sampled_from((80.0, 800.0)))
    ranks = range(len(rank_host))
    links = tuple(
        Link(
            src=src,
            dst=dst,
            alpha_us=5.0,
            beta_us_per_mb=80.0 if rank_host[src] == rank_host[dst] else slow,
        )
        for src in ranks
        for dst in ranks
        if src != dst
    )
    names = tuple(f"host{k}" for k in range(hosts))
    return Topology(name="random", hosts=names, rank_host=rank_host, links=links)


@st.composite
def _settings(draw: st.DrawFn, collective: Collective) -> Request:
    topology = draw(_topologies())
    root = draw(st.integers(0, topology.ranks - 1)) if collective in ROOTED else 0
    groups = None
    if draw(st.booleans()):
        labels = [draw(st.integers(0, 3)) for _ in range(topology.ranks)]
        parts = [tuple(r for r, mine in enumerate(labels) if mine == g) for g in range(4)]
        groups = tuple(part for part in parts if part)
    chunks = draw(st.sampled_from((1, 3, 8, 40)))
    return Request(topology, collective, groups=groups, root=root, max_chunks=chunks)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("collective", STANDARD)
def test_every_generator_makes_correct_programs(collective: Collective) -> None:
    served: set[str] = set()

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(_settings(collective))
    def holds(request: Request) -> None:
        for generator in TEMPLATES:
            try:
                schedules = list(generator.schedules(request))
            except ProgramError:
                continue
            served.add(generator.name)
            for schedule in schedules:
                program = lower(schedule)
                verify(program)
                if len(program.steps["op"]) <= _RUN_UP_TO_STEPS:
                    assert misbehaves(program, seed=len(served), runs=4) == "", generator.name

    holds()
    assert served == {name for name, collectives in SERVES.items() if collective in collectives}
    assert set(SERVES) == {generator.name for generator in TEMPLATES}
