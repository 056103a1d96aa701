"""Search-based generators: a proven program or a reason why not; deterministic."""

from collections.abc import Sequence
from functools import cache

import pytest

from headrace.collectives.demand import STANDARD, Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.generators import limits
from headrace.collectives.plan.generators.table import ALL_GENERATORS, SEARCH_GENERATORS
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.plan import Plan
from headrace.collectives.plan.portfolio import plan_collective, predict_us
from headrace.collectives.plan.request import Generator, Method, Request
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Program, Schedule
from headrace.collectives.run.synthesis import NativeSearch
from headrace.errors import HeadraceError
from headrace.topology import Topology
from headrace.topology.presets import fat_tree, ndv2, torus
from tests.tiers import Sample

SAMPLED = pytest.mark.sampled(6)

MB = 1_000_000
TOPOLOGIES = (ndv2(nodes=1), torus((2, 2)), fat_tree((2, 2)))
QUICK = Method(model=FULL, engine=NativeSearch(), effort="quick")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall-clock safety limits must not strike, however slow the machine is."""
    monkeypatch.setattr(limits, "SECONDS", dict.fromkeys(limits.SECONDS, 300.0))


def programs(
    row: Generator, topology: Topology, collective: Collective, method: Method = QUICK
) -> list[Program]:
    request = Request(topology, collective, root=topology.ranks - 1, aims=(MB,), method=method)
    return [lower(schedule) for schedule in row.schedules(request)]


@SAMPLED
@pytest.mark.parametrize("collective", STANDARD)
@pytest.mark.parametrize("row", SEARCH_GENERATORS, ids=lambda row: row.name)
def test_every_generator_applies_or_gives_a_reason(row: Generator, collective: Collective) -> None:
    for topology in TOPOLOGIES:
        try:
            found = programs(row, topology, collective)
        except HeadraceError as error:
            assert len(str(error)) > 10
            continue
        for program in found:
            assert program.demand.collective is collective
            verify(program)
            bound = _bound(topology, program)
            assert predict_us(program, topology, MB, FULL) >= bound * (1 - 1e-9)


def _bound(topology: Topology, program: Program) -> float:
    demand = program.demand
    request = Request(topology, demand.collective, root=demand.root)
    return request.bound(demand, MB).total_us


SERVES_EVERYTHING = {"matching", "sketches"}


@SAMPLED
def test_some_serve_everything_everywhere(sample: Sample) -> None:
    for row in SEARCH_GENERATORS:
        if row.name in SERVES_EVERYTHING:
            for collective in sample.of(STANDARD, 2):
                assert programs(row, TOPOLOGIES[1], collective), (row.name, collective)


@SAMPLED
@pytest.mark.parametrize("row", SEARCH_GENERATORS, ids=lambda row: row.name)
def test_equal_seeds_give_equal_programs(row: Generator) -> None:
    method = Method(model=FULL, engine=NativeSearch(), effort="quick", seed=11)
    served = 0
    for collective in (Collective.ALLGATHER, Collective.ALLREDUCE, Collective.SCATTER):
        try:
            first = programs(row, TOPOLOGIES[0], collective, method)
        except HeadraceError:
            continue
        second = programs(row, TOPOLOGIES[0], collective, method)
        assert [p.digest for p in first] == [p.digest for p in second]
        served += len(first)
    if row.name in SERVES_EVERYTHING:
        assert served


@SAMPLED
@pytest.mark.parametrize("engine", [None, NativeSearch()], ids=["without", "engine"])
@pytest.mark.parametrize("row", SEARCH_GENERATORS, ids=lambda row: row.name)
def test_given_chunks_are_made_or_refused(row: Generator, engine: NativeSearch | None) -> None:
    topology = TOPOLOGIES[1]
    for collective, chunks in (
        (Collective.ALLGATHER, 3),
        (Collective.ALL_TO_ALL, 2),
        (Collective.ALLREDUCE, 2 * topology.ranks),
    ):
        method = Method(model=FULL, engine=engine, effort="quick", chunks=chunks)
        try:
            found = programs(row, topology, collective, method)
        except HeadraceError:
            continue
        assert {program.demand.chunks for program in found} <= {chunks}


@cache
def planned(index: int, collective: Collective, everyone: bool, seed: int = 0) -> Plan:
    rows: Sequence[Generator] = ALL_GENERATORS if everyone else TEMPLATES
    method = Method(model=FULL, engine=NativeSearch(), effort="quick", seed=seed)
    return plan_collective(TOPOLOGIES[index], collective, MB, generators=rows, method=method)


@SAMPLED
@pytest.mark.parametrize(
    "collective", [Collective.ALLGATHER, Collective.ALLREDUCE, Collective.ALL_TO_ALL]
)
def test_searching_is_never_worse_than_the_best_template(
    collective: Collective, sample: Sample
) -> None:
    for index in sample.of(range(len(TOPOLOGIES)), 2):
        best = planned(index, collective, everyone=True)
        try:
            template = planned(index, collective, everyone=False)
        except ProgramError:  # an all_to_all where not all ranks are linked
            assert collective is Collective.ALL_TO_ALL
        else:
            assert best.predicted_us <= template.predicted_us * (1 + FULL.alike)
        assert best.predicted_us >= best.bound.total_us * (1 - 1e-9)
        assert best.why


@SAMPLED
def test_searching_pays_where_templates_do_not_fit() -> None:
    template = planned(0, Collective.ALLGATHER, everyone=False)
    best = planned(0, Collective.ALLGATHER, everyone=True)
    assert best.predicted_us < 0.9 * template.predicted_us
    assert best.generator in {row.name for row in SEARCH_GENERATORS}
    candidates = {c.generator: c for c in best.candidates}
    assert {row.name for row in ALL_GENERATORS} == set(candidates)


def test_an_interrupt_in_a_search_keeps_the_templates() -> None:
    def interrupted(_setting: Request) -> list[object]:
        raise KeyboardInterrupt

    rows = (*TEMPLATES, Generator("interrupted", interrupted))  # type: ignore[arg-type]
    plan = plan_collective(TOPOLOGIES[0], Collective.ALLREDUCE, MB, generators=rows, method=QUICK)
    assert plan.generator in {row.name for row in TEMPLATES}
    assert plan.candidates[-1].note == "interrupted"


@SAMPLED
def test_finer_cuts_of_what_is_far_behind_are_not_tried() -> None:
    row = next(row for row in SEARCH_GENERATORS if row.name == "packing")
    method = Method(model=FULL, engine=NativeSearch())
    for best_us, counts in ((float("inf"), [8, 24]), (1.0, [8])):
        request = Request(
            ndv2(nodes=1),
            Collective.ALLGATHER,
            groups=None,
            root=0,
            aims=(MB,),
            method=method,
            best_us=lambda _, us=best_us: us,
        )
        assert [made.demand.chunks for made in row.schedules(request)] == counts


def test_generators_know_the_best_so_far() -> None:
    told: dict[str, float] = {}

    def ask(request: Request) -> Sequence[Schedule]:
        told[request.method.effort] = request.best_us(MB)
        return ()

    topology, rows = torus((2, 2)), (*TEMPLATES, Generator("curious", ask))
    made = plan_collective(topology, Collective.ALLGATHER, MB, generators=rows, method=QUICK)
    assert told.pop("quick") == made.predicted_us
    patient = Method(model=FULL, effort="thorough")
    plan_collective(topology, Collective.ALLGATHER, MB, generators=rows, method=patient)
    assert told == {"thorough": float("inf")}


def test_the_table_is_frozen() -> None:
    """A new generator is one more row: update this list with it."""
    assert [row.name for row in SEARCH_GENERATORS] == [
        "orbits",
        "matching",
        "mirrored",
        "placed",
        "exact",
        "packing",
        "sketches",
    ]
    assert all(row.min_gap is not None for row in SEARCH_GENERATORS)
    assert (*TEMPLATES, *SEARCH_GENERATORS) == ALL_GENERATORS
