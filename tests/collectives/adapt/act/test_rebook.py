"""Masters out of programs, and plans out of masters."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.adapt.act.quicktune import quicktune
from headrace.collectives.adapt.act.rebook import (
    FINETUNE,
    QUICKTUNE,
    book_masters,
    like,
    masters_of,
    moved,
    replanned,
)
from headrace.collectives.adapt.observe.port_changes import PortRates, bandwidth
from headrace.collectives.adapt.offline import adapt_book
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.generators.templates.two_level.masters import Masters, spread_masters
from headrace.collectives.plan.generators.templates.two_level.schedule import two_level
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.locality import RankGroups
from headrace.collectives.plan.portfolio import predict_us
from headrace.collectives.plan.request import Method
from headrace.collectives.program import Program
from headrace.collectives.run.synthesis import NativeSearch
from headrace.errors import InputError
from headrace.topology import Topology, subgraph
from headrace.topology.presets import ring, uniform
from tests.collectives.adapt.clusters import network

SAMPLED = pytest.mark.sampled(1)

GROUPS = ((0, 1, 2, 3), (4, 5, 6, 7))
SIZE = 1 << 20


@st.composite
def masters(draw: st.DrawFn) -> Masters:
    """Any assignment, however uneven."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = draw(st.permutations(range(sum(sizes))))
    ends = np.cumsum([0, *sizes]).tolist()
    groups = tuple(tuple(sorted(order[a:b])) for a, b in pairwise(ends))
    chunks = draw(st.integers(1, 6))
    local = [[draw(st.sampled_from(group)) for group in groups] for _ in range(chunks)]
    top = [row[draw(st.integers(0, len(groups) - 1))] for row in local]
    return Masters(
        groups=groups,
        local_master=np.array(local, np.int32),
        global_master=np.array(top, np.int32),
    )


def program_of(given: Masters) -> Program:
    demand = Demand(collective=Collective.ALLREDUCE, ranks=given.ranks, chunks=given.chunks)
    return lower(two_level(demand, given))


@given(masters())
@settings(max_examples=60)
def test_masters_are_read_back_from_the_program(given: Masters) -> None:
    if given.ranks == 1:
        return
    found = masters_of(program_of(given), given.groups)
    assert found is not None
    assert (found.local_master == given.local_master).all()
    assert (found.global_master == given.global_master).all()


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "full_exchange", "exchange"])
def test_other_programs_have_no_masters(name: str) -> None:
    demand = Demand(collective=Collective.ALLREDUCE, ranks=8, chunks=8)
    more = {"groups": GROUPS} if name == "exchange" else {}
    assert masters_of(lower(getattr(templates, name)(demand, **more)), GROUPS) is None


def test_like_keeps_the_proportions() -> None:
    tuned = spread_masters(GROUPS, 64, capacities=[1, 3, 3, 3, 5, 5, 5, 5])
    more = like(tuned, 640)
    assert more.local_counts == pytest.approx(tuned.local_counts * 10, abs=2)
    assert like(tuned, 64) is tuned


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    return network(tmp_path, uplink="1600mbit")


@pytest.fixture
def small(tmp_path: Path) -> Topology:
    return network(tmp_path, (2, 2), uplink="800mbit")


def book_of(topology: Topology, groups: RankGroups | None = GROUPS) -> PlanBook:
    return build_book(
        topology,
        groups=groups,
        collectives=(Collective.ALLREDUCE, Collective.ALLGATHER),
        sizes=(1 << 10, SIZE),
    )


def test_a_replanned_book_is_whole_and_keeps_what_is_not_called(topology: Topology) -> None:
    book = book_of(topology)
    now = PortRates(factors={"host0-out": 0.4, "host0-in": 0.4}).apply(topology)
    found = book_masters(book, {SIZE: 2})
    assert found is not None
    made = build_book(
        now,
        groups=GROUPS,
        collectives=(Collective.ALLREDUCE,),
        sizes=(SIZE,),
        generators=[each for each in TEMPLATES if each.name == "ring"],
    )
    adapted = replanned(book, made, quicktune(found, bandwidth(now)))
    [choice] = adapted.choices
    assert choice.entry.plan.generator == QUICKTUNE
    assert choice.entry.plan.predicted_us < 0.8 * choice.before_us
    # what goes over the wire is read, and proven, again
    read = PlanBook.from_bytes(adapted.book.to_artifact().to_bytes())
    assert read.digest == adapted.book.digest
    old = book.choose(Collective.ALLGATHER, SIZE)
    kept = read.choose(Collective.ALLGATHER, SIZE)
    assert kept is not None
    assert old is not None
    assert kept.program.digest == old.program.digest


def test_only_masters_of_what_is_called_move(topology: Topology) -> None:
    book = build_book(
        topology,
        groups=GROUPS,
        collectives=(Collective.ALLREDUCE, Collective.ALLGATHER),
        sizes=(1 << 10, SIZE),
        generators=[each for each in TEMPLATES if each.name == "hierarchical"],
    )
    uneven = spread_masters(GROUPS, 32, capacities=[9] + [1] * 7)
    made = moved(book, topology, uneven, [(Collective.ALLREDUCE, SIZE)] * 2)
    [choice] = made.choices
    assert choice.entry.plan.generator == FINETUNE
    assert choice.entry.plan.predicted_us > choice.before_us
    tuned = book_masters(made.book, {SIZE: 1}, spread=False)
    assert tuned is not None
    assert tuned.local_counts[0] > 2 * tuned.local_counts[1]
    assert PlanBook.from_bytes(made.book.to_artifact().to_bytes()).digest == made.book.digest


@SAMPLED
def test_a_book_is_adapted_offline(small: Topology) -> None:
    book = book_of(small, None)
    now = PortRates(factors={"host0-out": 0.4, "host0-in": 0.4}).apply(small)
    adapted = adapt_book(book, now, None)
    assert PlanBook.from_bytes(adapted.book.to_artifact().to_bytes()).digest == adapted.book.digest
    assert {c.entry.collective for c in adapted.choices} == {
        Collective.ALLREDUCE,
        Collective.ALLGATHER,
    }
    for choice in adapted.choices:
        assert choice.entry.plan.predicted_us <= choice.before_us * (1 + 1e-9)
    assert adapted.masters is not None
    before, after = adapted.masters
    assert after.local_counts[0] < before.local_counts[0]
    with pytest.raises(InputError, match="ranks 3, the plan book 4"):
        adapt_book(book, uniform(3), None)


@SAMPLED
def test_an_unchanged_network_is_planned_for_as_well_as_before(small: Topology) -> None:
    book = book_of(small, None)
    adapted = adapt_book(book, small, None)
    for size in (1 << 10, SIZE):
        old = book.choose(Collective.ALLREDUCE, size)
        new = adapted.book.choose(Collective.ALLREDUCE, size)
        assert old is not None
        assert new is not None
        assert predict_us(new.program, small, size) <= 1.1 * old.predicted_us


def test_masters_stay_where_not_all_ranks_are_linked() -> None:
    """Tuning masters on a ring failed: a rate of 0 between ranks that no link joins."""
    book = build_book(uniform(4), collectives=[Collective.ALLREDUCE], sizes=[SIZE])
    adapted = adapt_book(book, replace(ring(4), hosts=book.topology.hosts), None)
    assert adapted.masters is None
    assert [entry.plan.generator for entry in adapted.book.entries] == ["ring"]


def test_plans_over_a_lost_link_are_replaced() -> None:
    """Adapting ended there: their time on a network without the link is none."""
    before = uniform(3)
    book = build_book(before, collectives=[Collective.ALLGATHER], sizes=[SIZE])
    links = [i for i, link in enumerate(before.links) if (link.src, link.dst) != (2, 0)]
    now = subgraph(before, links)
    method = Method(engine=NativeSearch(), effort="quick")
    adapted = adapt_book(book, now, None, method=method)
    assert adapted.lost_links == ((2, 0),)
    assert np.inf in [choice.before_us for choice in adapted.choices]
    for entry in adapted.book.entries:
        assert entry.plan.predicted_us == predict_us(
            entry.plan.program, now, entry.plan.total_bytes, entry.plan.model
        )
