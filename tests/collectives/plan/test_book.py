"""The plan book: what it chooses, how it is stored, what it refuses."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.collectives.demand import ROOTED, STANDARD, Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.plan import Plan
from headrace.collectives.plan.portfolio import Portfolio
from headrace.collectives.plan.request import Generator, Method, Request
from headrace.collectives.program import Schedule
from headrace.collectives.run.synthesis import NativeSearch
from headrace.errors import ArtifactError, HeadraceError, VerificationError
from headrace.topology import Topology
from headrace.topology.presets import hub_and_spoke, racks, uniform

TOPOLOGY = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6, rank_order=(0, 2, 1, 3))


@pytest.fixture(scope="module")
def book() -> PlanBook:
    return build_book(TOPOLOGY)


def test_ranges_cover_every_size_once(book: PlanBook) -> None:
    by_key: dict[tuple[Collective, int], list[tuple[int, int | None]]] = {}
    for entry in book.entries:
        by_key.setdefault((entry.collective, entry.root), []).append(
            (entry.from_bytes, entry.to_bytes)
        )
    wanted = {(c, r) for c in STANDARD for r in (range(4) if c in ROOTED else (0,))}
    assert set(by_key) == wanted
    for ranges in by_key.values():
        assert ranges[0][0] == 0
        assert ranges[-1][1] is None
        assert [end for _, end in ranges[:-1]] == [start for start, _ in ranges[1:]]


def test_choose_is_by_range(book: PlanBook) -> None:
    for entry in book.entries:
        inside = [entry.from_bytes] + ([] if entry.to_bytes is None else [entry.to_bytes - 1])
        for total_bytes in [*inside, entry.plan.total_bytes]:
            assert book.choose(entry.collective, total_bytes, entry.root) is entry.plan
    assert book.choose(Collective.ALLREDUCE, 1 << 40) is book.choose("allreduce", 1 << 30)
    assert book.choose(Collective.ALLREDUCE, 0) is not None


def test_neighbours_differ(book: PlanBook) -> None:
    for a, b in zip(book.entries, book.entries[1:], strict=False):
        if (a.collective, a.root) == (b.collective, b.root):
            assert a.plan.program is not b.plan.program


def test_long_and_short_vectors_get_different_programs(book: PlanBook) -> None:
    long, short = book.choose("allreduce", 16 << 20), book.choose("allreduce", 1 << 10)
    assert long is not None
    assert short is not None
    assert long.generator == "hierarchical"
    assert short.generator != "hierarchical"


def test_what_is_not_planned_is_none() -> None:
    small = build_book(uniform(3), collectives=[Collective.BROADCAST], sizes=[1 << 20])
    assert small.choose(Collective.ALLREDUCE, 1) is None
    assert small.choose(Collective.BROADCAST, 1, root=2) is not None
    wide = build_book(uniform(9), collectives=[Collective.BROADCAST], sizes=[1 << 20])
    assert wide.choose(Collective.BROADCAST, 1, root=0) is not None
    assert wide.choose(Collective.BROADCAST, 1, root=2) is None


@pytest.mark.sampled(4, of="long plans")
def test_a_collective_that_no_template_fits_is_searched_for() -> None:
    """`headrace collectives plan` of an NDv2 ended with "no plan was found for reduce".

    Templates alone were tried for collectives with a root, also with --search, and none of them
    can do with the links of a mesh.
    """
    spokes = hub_and_spoke(3)
    request = {"collectives": ["gather"], "sizes": [1 << 20]}
    method = Method(engine=NativeSearch(), effort="quick")
    searched = build_book(spokes, **request, method=method)
    assert [entry.root for entry in searched.entries] == [0, 1, 2]
    with pytest.raises(ProgramError, match=r"direct: uses a link .* matching, .*: needs a search"):
        build_book(spokes, **request)


def test_a_collective_that_is_named_twice_is_planned_once() -> None:
    """Its plans were twice in the book, which no command could read."""
    book = build_book(uniform(3), collectives=[Collective.ALLGATHER] * 2, sizes=[1 << 14, 1 << 26])
    assert PlanBook.from_bytes(book.to_artifact().to_bytes()).digest == book.digest


def test_an_interrupt_before_a_first_candidate_keeps_the_collectives_before() -> None:
    def schedules(request: Request) -> Iterable[Schedule]:
        if request.collective is Collective.REDUCE:
            raise KeyboardInterrupt
        return TEMPLATES[0].schedules(request)

    row = Generator("direct", schedules)
    kept = build_book(
        uniform(3), collectives=["allgather", "reduce"], sizes=[1 << 20], generators=[row]
    )
    assert {entry.collective for entry in kept.entries} == {"allgather"}
    with pytest.raises(KeyboardInterrupt):
        build_book(uniform(3), collectives=["reduce"], sizes=[1 << 20], generators=[row])


def test_an_interrupt_while_candidates_are_compared_keeps_the_collectives_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It lost them all: comparing takes as long as making the candidates, or longer."""
    plan = Portfolio.plan

    def interrupted(portfolio: Portfolio, total_bytes: int) -> Plan:
        if portfolio.request.collective is Collective.REDUCE:
            raise KeyboardInterrupt
        return plan(portfolio, total_bytes)

    monkeypatch.setattr(Portfolio, "plan", interrupted)
    cut = build_book(uniform(3), collectives=["allgather", "reduce"], sizes=[1 << 20])
    assert {entry.collective for entry in cut.entries} == {"allgather"}
    with pytest.raises(KeyboardInterrupt):
        build_book(uniform(3), collectives=["reduce"], sizes=[1 << 20])


def test_a_book_without_plans_is_refused(book: PlanBook) -> None:
    """It had no digest, and could not be saved."""
    with pytest.raises(ProgramError, match="has no entries"):
        build_book(TOPOLOGY, collectives=[])
    empty = book.to_artifact()
    tables = {
        name: {column: values[:0] for column, values in table.items()}
        for name, table in empty.tables.items()
    }
    empty = replace(empty, head={**empty.head, "entries": [], "programs": []}, tables=tables)
    with pytest.raises(ProgramError, match="has no entries"):
        PlanBook.from_artifact(empty)


def test_round_trip_byte_for_byte(book: PlanBook, tmp_path: Path) -> None:
    book.save(tmp_path / "one")
    again = PlanBook.load(tmp_path / "one")
    again.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert again.digest == book.digest
    assert again.topology == book.topology
    assert again.groups == book.groups == ((0, 2), (1, 3))
    for mine, other in zip(book.entries, again.entries, strict=True):
        assert mine.plan.program.digest == other.plan.program.digest
        assert mine.plan.candidates == other.plan.candidates


def test_programs_are_stored_once(book: PlanBook) -> None:
    digests = [proof.program_digest for _, proof in book.programs]
    assert len(set(digests)) == len(digests)
    assert set(digests) == {entry.plan.program.digest for entry in book.entries}


@pytest.mark.sampled(4, of="long plans")
def test_building_is_reproducible_and_tells_its_progress(book: PlanBook) -> None:
    seen: list[tuple[str, float]] = []
    again = build_book(TOPOLOGY, progress=lambda what, done: seen.append((what, done)))
    assert again.digest == book.digest
    fractions = [done for _, done in seen]
    assert fractions == sorted(fractions)
    assert seen[-1] == ("done", 1.0)
    assert "broadcast (root 3)" in [what for what, _ in seen]


def test_provenance(book: PlanBook) -> None:
    assert book.provenance["topology"] == TOPOLOGY.digest
    assert "ring" in book.provenance["generators"]
    assert book.provenance["sizes"] is None


def test_an_altered_program_is_refused(book: PlanBook) -> None:
    artifact = book.to_artifact()
    steps = {name: column.copy() for name, column in artifact.tables["steps"].items()}
    steps["slot"][-1] ^= 1
    altered = replace(artifact, tables={**artifact.tables, "steps": steps})
    with pytest.raises(ArtifactError, match=r"proof.program_digest"):
        PlanBook.from_artifact(altered)


@pytest.mark.parametrize("field", ["topology", "groups", "programs", "entries"])
def test_a_missing_field_is_named(book: PlanBook, field: str) -> None:
    artifact = book.to_artifact()
    head = {name: value for name, value in artifact.head.items() if name != field}
    with pytest.raises(ArtifactError, match=f"KeyError.*{field}"):
        PlanBook.from_artifact(replace(artifact, head=head))


def test_a_program_altered_with_its_digest_is_refused(book: PlanBook, tmp_path: Path) -> None:
    artifact = book.to_artifact()
    steps = {name: column.copy() for name, column in artifact.tables["steps"].items()}
    number = next(
        i
        for i, (program, _) in enumerate(book.programs)
        if program.demand.collective is Collective.ALLREDUCE
    )
    altered = (steps["program"] == number) & (steps["op"] == 2)
    steps["op"][altered] = 1  # receive instead of receive and reduce
    program = book.programs[number][0]
    own = {name: steps[name][steps["program"] == number] for name in program.steps}
    digest = replace(program, steps=own).digest
    assert digest != program.digest
    rows = [dict(row) for row in artifact.head["programs"]]
    rows[number]["proof"] = {**rows[number]["proof"], "program_digest": digest}
    forged = replace(
        artifact,
        head={**artifact.head, "programs": rows},
        tables={**artifact.tables, "steps": steps},
    )
    forged.save(tmp_path / "forged")
    with pytest.raises(VerificationError, match=rf"forged: field 'programs\[{number}\]'"):
        PlanBook.load(tmp_path / "forged")


def with_entry(book: PlanBook, index: int, **changes: Any) -> PlanBook:
    artifact = book.to_artifact()
    rows = [dict(row) for row in artifact.head["entries"]]
    rows[index].update(changes)
    return PlanBook.from_artifact(
        replace(artifact, head={**artifact.head, "entries": rows}), "bad.book"
    )


@pytest.mark.sampled(6)
# entries: 0 is the one of all_to_all, 1 the first of allgather, the last one of scatter from 3
@pytest.mark.parametrize(
    ("index", "changes", "message"),
    [
        (0, {"program": -1}, "'program' is -1, needs 0 to"),
        (0, {"program": 1000}, "'program' is 1000, needs 0 to"),
        (0, {"program": 1}, r"'programs\[0\]' is of no entry, needs one"),
        (0, {"program": None}, r"entries\[0\]': None is not an integer"),
        (0, {"collective": "allreduce"}, r"entries\[0\].collective' is 'allreduce'"),
        (0, {"collective": "everything"}, "'collective' is 'everything', needs one of allreduce"),
        (0, {"collective": None}, "'collective' is None"),
        (-1, {"root": 1}, r"root' is 1, its program's is 3"),
        (-1, {"root": True}, "True is not an integer"),
        (0, {"topology_digest": "0"}, r"entries\[0\]: field 'topology_digest' is '0', its topo"),
        (0, {"from_bytes": 5}, r"entries\[0\].from_bytes' is 5, needs 0"),
        (1, {"to_bytes": 5}, r"entries\[2\].from_bytes' is \d+, needs 5"),
        (1, {"to_bytes": -5}, r"entries\[1\].to_bytes' is -5, needs at least 0"),
        (1, {"to_bytes": None}, r"entries\[2\].from_bytes' is \d+, needs nothing"),
        (1, {"to_bytes": "5"}, r"entries\[1\]': '5' is not an integer"),
        (1, {"bound": None}, r"entries\[1\]: field 'bound': needs collective"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused(
    book: PlanBook, index: int, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message) as caught:
        with_entry(book, index, **changes)
    assert str(caught.value).startswith("bad.book: ")


def test_entries_out_of_order_are_refused(book: PlanBook) -> None:
    artifact = book.to_artifact()
    head = {**artifact.head, "entries": artifact.head["entries"][::-1]}
    with pytest.raises(ArtifactError, match=r"entries\[\d+\]"):
        PlanBook.from_artifact(replace(artifact, head=head))


def test_programs_for_another_number_of_ranks_are_refused(book: PlanBook) -> None:
    artifact = book.to_artifact()
    head = {**artifact.head, "topology": uniform(3).to_head(), "groups": None}
    with pytest.raises(ArtifactError, match=r"programs\[0\]': ranks is 4, needs 3"):
        PlanBook.from_artifact(replace(artifact, head=head))


@pytest.mark.parametrize("found", [None, "x", 7, [7], [None], {}])
@pytest.mark.parametrize("field", ["topology", "groups", "programs", "entries"])
def test_a_bad_field_is_refused(book: PlanBook, field: str, found: object) -> None:
    if field == "groups" and found is None:
        return
    artifact = book.to_artifact()
    with pytest.raises(HeadraceError, match="bad.book"):
        PlanBook.from_artifact(replace(artifact, head={**artifact.head, field: found}), "bad.book")


@pytest.mark.parametrize("table", ["lanes", "steps", "dependencies"])
def test_a_bad_table_is_refused(book: PlanBook, table: str) -> None:
    artifact = book.to_artifact()
    columns = artifact.tables[table]
    unowned = {name: values for name, values in columns.items() if name != "program"}
    for bad in (
        {name: kept for name, kept in artifact.tables.items() if name != table},
        {**artifact.tables, table: unowned},
        {**artifact.tables, table: {**columns, "program": columns["program"][::-1]}},
        {**artifact.tables, table: {**columns, "program": columns["program"] - 100}},
        {**artifact.tables, table: {**columns, "program": columns["program"] * 0.5}},
    ):
        with pytest.raises(ArtifactError, match=table):
            PlanBook.from_artifact(replace(artifact, tables=bad))


def test_one_measured_group_leaves_hosts_to_be_found() -> None:
    topology = Topology(
        name="two-hosts", hosts=("a", "b"), rank_host=(0, 1, 0, 1), links=uniform(4).links
    )
    made = build_book(
        topology,
        groups=((0, 1, 2, 3),),
        collectives=[Collective.ALLREDUCE],
        sizes=[1 << 20],
    )
    assert made.groups == ((0, 2), (1, 3))
