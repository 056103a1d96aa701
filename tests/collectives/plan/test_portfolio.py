"""The portfolio: applicable generators, the choice, and the notes of the other candidates."""

import contextlib
import dataclasses
import random
import threading
from collections.abc import Iterator

import pytest

from headrace.collectives.demand import STANDARD, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan import portfolio as portfolio_module
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import EXECUTOR, FULL
from headrace.collectives.plan.generators.templates.direct import direct
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.locality import locality
from headrace.collectives.plan.portfolio import (
    Portfolio,
    plan_collective,
    predict_us,
    rescore,
)
from headrace.collectives.plan.request import Generator, Method, Request
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Program, Schedule, Transfer
from headrace.errors import TopologyError
from headrace.topology import Link, Topology
from headrace.topology.presets import racks, uniform

MIB = 1 << 20


def two_racks(order: tuple[int, ...] | None = None) -> Topology:
    return racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6, rank_order=order)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 1, 0, 2)])
@pytest.mark.parametrize(("total_bytes", "least"), [(16 * MIB, 0.99), (4 * MIB, 0.98)])
def test_allreduce_across_racks_is_near_the_bound_in_every_rank_order(
    order: tuple[int, ...], total_bytes: int, least: float
) -> None:
    plan = plan_collective(two_racks(order), Collective.ALLREDUCE, total_bytes)
    assert plan.bound.total_us / plan.predicted_us > least


@pytest.mark.sampled(3)
@pytest.mark.parametrize("collective", STANDARD)
def test_every_collective_is_planned_and_within_its_bound(collective: Collective) -> None:
    for topology in (two_racks(), uniform(3), uniform(1), racks_uneven()):
        plan = plan_collective(topology, collective, MIB, root=topology.ranks - 1)
        verify(plan.program)
        assert plan.program.demand.collective is collective
        assert plan.predicted_us >= plan.bound.total_us * (1 - 1e-6)


def racks_uneven() -> Topology:
    return racks((3, 1, 1), host_bytes_per_s=50e6, uplink_bytes_per_s=20e6)


def test_random_topologies() -> None:
    draw = random.Random(7)
    for _ in range(8):
        n = draw.randrange(2, 7)
        topology = Topology(
            name="random",
            hosts=tuple(map(str, range(n))),
            rank_host=tuple(range(n)),
            links=tuple(
                Link(
                    src=s,
                    dst=d,
                    alpha_us=draw.uniform(0, 100),
                    beta_us_per_mb=10 ** draw.uniform(2, 5),
                )
                for s in range(n)
                for d in range(n)
                if s != d
            ),
        )
        collective = draw.choice(list(STANDARD))
        plan = plan_collective(topology, collective, draw.choice((0, 1, 1000, MIB)))
        verify(plan.program)
        assert plan.predicted_us >= plan.bound.total_us * (1 - 1e-6)


@pytest.mark.sampled(3)
def test_pruning_loses_nothing() -> None:
    """Pruned candidates would cost no less than the chosen one."""
    for topology, collective in (
        (two_racks(), Collective.ALLREDUCE),
        (fast(7), Collective.ALLREDUCE),
        (fast(4), Collective.BROADCAST),  # by predictions alone the chosen one would be left out
    ):
        portfolio = Portfolio.of(Request(topology, collective), (MIB, 4 * MIB))
        pruned = 0
        for total_bytes in (1 << 10, 64 << 10, MIB, 4 * MIB):
            plan = portfolio.plan(total_bytes)
            left_out = {
                (c.generator, c.chunks)
                for c in plan.candidates
                if c.note.startswith("cannot take less")
            }
            cost = {
                (e.generator, e.program.demand.chunks): choice_us(e.program, topology, total_bytes)
                for e in portfolio.candidates
            }
            pruned += len(left_out)
            chosen = cost[plan.generator, plan.program.demand.chunks]
            for candidate in left_out:
                assert cost[candidate] > chosen * (1 - EXECUTOR.alike), candidate
        assert pruned


def fast(ranks: int) -> Topology:
    """Where the processor's time for steps weighs more than the network's."""
    return uniform(ranks, bytes_per_s=10e9, alpha_us=2.0)


def choice_us(program: Program, topology: Topology, total_bytes: int) -> float:
    """Cost of a candidate: predicted time, and processor time for exposed steps."""
    ranks = [int(program.lanes["rank"][lane]) for lane in program.steps["lane"]]
    steps = max(map(ranks.count, set(ranks)), default=0)
    charge = EXECUTOR.step_us * min(steps, EXECUTOR.exposed_steps)
    return predict_us(program, topology, total_bytes) + charge


def test_one_measured_group_leaves_hosts_to_be_found() -> None:
    full = uniform(4)
    topology = Topology(
        name="two-hosts", hosts=("a", "b"), rank_host=(0, 1, 0, 1), links=full.links
    )
    plan = plan_collective(topology, Collective.ALLREDUCE, MIB, groups=((0, 1, 2, 3),))
    names = {c.generator for c in plan.candidates if c.chunks}
    assert "hierarchical" in names
    request = Request(topology, Collective.ALLREDUCE, groups=((0, 1, 2, 3),), root=0)
    assert request.groups == ((0, 2), (1, 3))


def test_absent_generators_and_why() -> None:
    plan = plan_collective(uniform(3), Collective.BROADCAST, MIB)
    notes = {c.generator: c.note for c in plan.candidates if c.chunks == 0}
    assert notes["hierarchical"] == "the topology has a single group"
    assert "does not support broadcast over 3 ranks" in notes["halving_doubling"]
    assert {c.generator for c in plan.candidates} == {g.name for g in TEMPLATES}


def test_a_wrong_program_is_never_kept() -> None:
    def cheat(request: Request) -> list[Schedule]:
        return [Schedule.of(request.demand(1), [Transfer(0, 1, 0, 0, True)])]

    def honest(request: Request) -> list[Schedule]:
        return [direct(request.demand(1))]

    rows = (Generator("cheat", cheat), Generator("honest", honest))
    plan = plan_collective(uniform(3), Collective.ALLREDUCE, MIB, generators=rows)
    assert plan.generator == "honest"
    assert "rejected" in plan.candidates[0].note
    with pytest.raises(ProgramError, match="cheat: rejected"):
        plan_collective(uniform(3), Collective.ALLREDUCE, MIB, generators=rows[:1])


def test_without_any_plan_the_error_names_the_problem_and_remedies() -> None:
    full = uniform(3)
    star = dataclasses.replace(
        full, name="star", links=tuple(k for k in full.links if k.dst == 0), shared=()
    )
    with pytest.raises(ProgramError) as caught:
        plan_collective(star, Collective.ALLGATHER, MIB)
    message = str(caught.value)
    start = "no plan was found for allgather of 1048576 bytes over the 3 ranks of topology 'star': "
    assert message.startswith(start)
    assert "direct, ring: uses a link 0 -> 1 that the topology lacks" in message
    assert message.endswith(
        "; add the links that are lacking to the topology, or plan with a sketch"
    )
    chunked, only = Method(chunks=2), (Generator("direct", lambda s: [direct(s.demand(2))]),)
    with pytest.raises(ProgramError, match="in 2 chunks over .* leave the number of chunks open"):
        plan_collective(star, Collective.ALLGATHER, MIB, generators=TEMPLATES, method=chunked)
    with pytest.raises(ProgramError, match="or plan without direct$"):
        plan_collective(star, Collective.ALLGATHER, MIB, generators=only)


def test_candidates_ruled_out_by_their_busiest_link_are_not_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every candidate used to be simulated twice, whatever was known of it."""
    calls: list[int] = []

    def counting(program: Program, *rest: object, **options: object) -> object:
        calls.append(program.demand.chunks)
        return simulate(program, *rest, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(portfolio_module, "simulate", counting)

    def two(request: Request) -> Iterator[Schedule]:
        yield ring(request.demand(1))
        yield direct(request.demand(3))

    def later(request: Request) -> Iterator[Schedule]:
        raise ProgramError("asked")
        yield

    made = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=5e6)
    rows = (Generator("two", two), Generator("later", later, min_gap=1e-9))
    plan = plan_collective(
        made, Collective.ALLGATHER, 16 * MIB, generators=rows, method=Method(model=FULL)
    )
    assert plan.program.demand.chunks == 1
    assert calls == [1]
    assert "cannot take less" in plan.candidates[1].note


def test_links_that_do_not_exist_are_not_used() -> None:
    full = uniform(3)
    around = Topology(
        name="one-way-ring",
        hosts=full.hosts,
        rank_host=full.rank_host,
        links=tuple(k for k in full.links if (k.src + 1) % 3 == k.dst),
    )
    plan = plan_collective(around, Collective.ALLREDUCE, MIB)
    assert plan.generator == "ring"
    assert any("the topology lacks" in c.note for c in plan.candidates if c.generator == "direct")


def test_small_chunks_are_left_out() -> None:
    plan = plan_collective(two_racks(), Collective.ALLREDUCE, 64 << 10)
    assert plan.program.demand.chunk_bytes(64 << 10) >= EXECUTOR.min_chunk_bytes


def test_rescore() -> None:
    topology = two_racks()
    plan = plan_collective(topology, Collective.ALLREDUCE, MIB)
    other = rescore(plan, topology, 4 * MIB)
    assert other.program is plan.program
    assert other.total_bytes == other.bound.total_bytes == 4 * MIB
    assert other.predicted_us == predict_us(plan.program, topology, 4 * MIB)
    assert (other.topology, other.model, other.why) == (topology, EXECUTOR, "")
    with pytest.raises(TopologyError, match="plan for this topology"):
        rescore(plan, uniform(4), MIB)


def test_bad_groups_are_named() -> None:
    with pytest.raises(ProgramError, match="groups"):
        plan_collective(uniform(3), Collective.ALLREDUCE, MIB, groups=((0, 1),))


def test_a_plan_keeps_its_topology_its_model_and_why_it_won() -> None:
    topology = two_racks()
    plan = plan_collective(
        topology, Collective.ALLREDUCE, MIB, generators=TEMPLATES, method=Method(model=FULL)
    )
    assert plan.topology is topology
    assert plan.model is FULL
    assert plan.predicted_us == predict_us(plan.program, topology, MIB, FULL)
    assert "next generator" in plan.why or "as fast as" in plan.why


def test_given_chunks_are_the_only_ones_that_compete() -> None:
    plan = plan_collective(two_racks(), Collective.ALLREDUCE, MIB, method=Method(chunks=8))
    assert {c.chunks for c in plan.candidates} <= {0, 8}
    assert plan.program.demand.chunks == 8


def test_an_interrupt_keeps_what_there_is() -> None:
    def honest(request: Request) -> list[Schedule]:
        return [direct(request.demand(1))]

    def impatient(request: Request) -> Iterator[Schedule]:
        yield direct(request.demand(2))
        raise KeyboardInterrupt

    rows = (
        Generator("honest", honest),
        Generator("impatient", impatient),
        Generator("late", honest),
    )
    plan = plan_collective(uniform(3), Collective.ALL_TO_ALL, MIB, generators=rows)
    made = [(c.generator, c.chunks) for c in plan.candidates]
    assert made[:2] == [("honest", 1), ("impatient", 2)]
    assert [c.generator for c in plan.candidates if c.note == "interrupted"] == [
        "impatient",
        "late",
    ]
    with pytest.raises(KeyboardInterrupt):  # nothing there to keep
        plan_collective(
            uniform(3), Collective.ALL_TO_ALL, MIB, generators=(Generator("hasty", hasty),)
        )


def test_an_interrupt_between_generators_keeps_the_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It lost them where it came while they were compared with the bound."""

    def interrupted(_portfolio: Portfolio, min_gap: float | None, _spent_s: float) -> str:
        if min_gap is not None:
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr(Portfolio, "_skip_reason", interrupted)
    search = Generator("search", hasty, min_gap=0.02)
    rows = (*TEMPLATES, search)
    plan = plan_collective(uniform(3), Collective.ALL_TO_ALL, MIB, generators=rows)
    assert [c.generator for c in plan.candidates if c.note == "interrupted"] == ["search"]


def hasty(_setting: Request) -> list[Schedule]:
    raise KeyboardInterrupt


def test_no_search_where_nothing_is_left_to_be_found() -> None:
    def never(_setting: Request) -> list[Schedule]:
        raise AssertionError("asked")

    everyone = (*TEMPLATES, Generator("never", never, min_gap=0.05))
    plan = plan_collective(
        uniform(2), Collective.ALLGATHER, MIB, generators=everyone, method=Method(model=FULL)
    )
    notes = {c.generator: c.note for c in plan.candidates}
    assert notes["never"].startswith("skipped: ")


class TestLocality:
    def test_racks_by_rate(self) -> None:
        assert locality(two_racks((0, 2, 1, 3))) == ((0, 2), (1, 3))
        assert locality(racks_uneven()) == ((0, 1, 2), (3,), (4,))

    def test_racks_by_shared_uplink_alone(self) -> None:
        wide = racks((2, 3, 3), host_bytes_per_s=50e6, uplink_bytes_per_s=50e6)
        assert locality(wide) == ((0, 1), (2, 3, 4), (5, 6, 7))

    def test_hosts(self) -> None:
        full = uniform(4)
        shared = Topology(
            name="two-hosts", hosts=("a", "b"), rank_host=(0, 1, 0, 1), links=full.links
        )
        assert locality(shared) == ((0, 2), (1, 3))

    def test_none(self) -> None:
        assert locality(uniform(4)) is None
        assert locality(uniform(1)) is None


def test_the_table_is_frozen() -> None:
    """A new generator is one more row: update this list with it."""
    assert [generator.name for generator in TEMPLATES] == [
        "direct",
        "full_exchange",
        "recursive_doubling",
        "halving_doubling",
        "ring",
        "double_binary_tree",
        "hierarchical",
        "hierarchical_even",
        "two_level",
        "exchange",
    ]
    demand = Demand(collective=Collective.ALLREDUCE, ranks=2)
    assert Request(topology=uniform(2), collective=Collective.ALLREDUCE).demand(1) == demand


def test_min_gap_grows_after_long_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates, and generators with a larger gap to close, are not skipped."""

    def makes(request: Request) -> Iterator[Schedule]:
        yield direct(request.demand(1))

    rows = (
        Generator("first", makes, min_gap=0.0),
        Generator("second", makes, min_gap=0.0),
        Generator("template", makes),
    )
    method = Method(model=FULL)
    all_three = ["first", "second", "template"]
    for late_s, late_gap, asked in (
        (1e9, 10.0, all_three),
        (-1.0, 10.0, ["first", "template"]),
        (-1.0, 0.0, all_three),
    ):
        monkeypatch.setattr(portfolio_module, "_LATE_S", late_s)
        monkeypatch.setattr(portfolio_module, "_LATE_GAP", late_gap)
        made = Portfolio.of(
            Request(two_racks(), Collective.ALLGATHER, method=method), (MIB,), generators=rows
        )
        assert [each.generator for each in made.candidates] == asked
        assert all("skipped: first is within" in each.note for each in made.absent)


def _looping(_setting: Request) -> Iterator[Schedule]:
    """Yields one program, then loops, whatever is raised."""
    yield ring(_setting.demand(1))
    while True:
        with contextlib.suppress(Exception):
            sum(range(100))


def test_a_generator_that_hangs_or_breaks_is_a_row_of_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that looped for ever hung planning; one with a defect took the others' plans along."""

    def broken(request: Request) -> Iterator[Schedule]:
        yield direct(request.demand(1))
        raise IndexError("list index out of range")

    def endless(request: Request) -> Iterator[Schedule]:
        while True:
            yield ring(request.demand(1))

    monkeypatch.setattr(portfolio_module, "_MOST_SCHEDULES", 3)
    rows = (
        Generator("looping", _looping),
        Generator("broken", broken),
        Generator("endless", endless),
        *(each for each in TEMPLATES if each.name == "halving_doubling"),
    )
    plan = plan_collective(
        uniform(4), Collective.ALLGATHER, MIB, generators=rows, method=Method(limit_s=1.0)
    )
    notes = {row.generator: row.note for row in plan.candidates if row.predicted_us is None}
    assert notes["looping"] == "stopped: out of time after 1 s, with 1 programs"
    assert notes["broken"] == "failed: IndexError: list index out of range"
    assert notes["endless"] == "stopped: limit of 3 programs reached"
    made = [row.generator for row in plan.candidates if row.chunks]
    assert made == ["looping", "broken", "endless", "endless", "endless", "halving_doubling"]


def test_where_every_generator_breaks_the_error_says_of_each_why() -> None:
    def broken(_setting: Request) -> Iterator[Schedule]:
        raise IndexError("list index out of range")

    rows = (Generator("broken", broken),)
    with pytest.raises(ProgramError, match="broken: failed: IndexError: list index out of range"):
        plan_collective(uniform(4), Collective.ALLGATHER, MIB, generators=rows)


def test_that_no_thread_can_be_started_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a limit of processes each generator failed, and the advice was to add links."""

    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        plan_collective(uniform(4), Collective.ALLGATHER, MIB)


def test_a_program_that_cannot_be_simulated_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(program: Program, *arguments: object, **options: object) -> object:
        if len(program.lanes["rank"]) > 24:
            raise ProgramError("it deadlocks")
        return simulate(program, *arguments, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(portfolio_module, "simulate", failing)
    everyone = [each for each in TEMPLATES if each.name in ("direct", "ring")]
    plan = plan_collective(uniform(6), Collective.ALLGATHER, MIB, generators=everyone)
    assert plan.generator == "ring"
    assert "rejected: it deadlocks" in {row.note for row in plan.candidates}
