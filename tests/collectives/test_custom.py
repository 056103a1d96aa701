import dataclasses
import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.custom import demand_from_head, demand_from_json, demand_to_head
from headrace.collectives.demand import ROOTED, STANDARD, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Program

_EXAMPLE = {
    "ranks": 3,
    "slots": 2,
    "before": [[0, 0, 0], [1, 1, 1]],
    "after": [[2, 0, 0], [2, 1, 1], [1, 0, 0, [0]]],
}


def test_the_documented_example(tmp_path: Path) -> None:
    path = tmp_path / "demand.json"
    path.write_text(json.dumps(_EXAMPLE))
    demand = demand_from_json(path)
    assert demand.initial(1) == [(1, 1, 0b10)]
    assert demand.final(2) == [(0, 0, 0b1), (1, 1, 0b10)]
    assert demand.final(0) == []
    program = lower(templates.direct(demand))
    assert verify(program).program_digest == program.digest


def test_contributors_left_out_are_all_there_are() -> None:
    head = {"ranks": 2, "slots": 1, "before": [[0, 0, 0], [1, 0, 0]], "after": [[1, 0, 0]]}
    assert demand_from_head(head).final(1) == [(0, 0, 0b11)]


def test_chunks_cut_slots_and_items() -> None:
    demand = demand_from_head({**_EXAMPLE, "chunks": 2})
    assert demand.slots == 4
    assert demand.initial(1) == [(2, 2, 0b10), (3, 3, 0b10)]
    assert demand.chunk_bytes(400) == 100.0


def test_an_uneven_exchange() -> None:
    demand = Demand.all_to_all_v([[1, 2], [0, 1]])
    assert (demand.blocks, demand.slots, demand.buffers) == (3, 6, (3, 6))
    assert demand.initial(0) == [(0, 0, 1), (1, 1, 1), (2, 2, 1)]
    assert demand.initial(1) == [(0, 3, 2)]
    assert demand.final(1) == [(0, 3, 2), (3, 1, 1), (4, 2, 1), (5, 3, 2)]
    assert Demand.all_to_all_v([[0]]).slots == 2


def test_an_even_one_is_an_all_to_all() -> None:
    even = Demand.all_to_all_v([[2] * 3] * 3)
    plain = Demand(collective=Collective.ALL_TO_ALL, ranks=3, chunks=2)
    assert even.slots == plain.slots
    for rank in range(3):
        assert even.initial(rank) == plain.initial(rank)
        assert even.final(rank) == plain.final(rank)
    assert even.chunk_bytes(600) == plain.chunk_bytes(600)


@pytest.mark.parametrize(
    "demand",
    [
        *(Demand(collective=c, ranks=3, chunks=2, root=2 * (c in ROOTED)) for c in STANDARD),
        Demand.all_to_all_v([[1, 2], [0, 1]], chunks=3),
        demand_from_head(_EXAMPLE),
    ],
)
def test_a_program_keeps_its_demand(demand: Demand) -> None:
    assert demand_from_head(json.loads(json.dumps(demand_to_head(demand)))) == demand
    program = lower(templates.direct(demand))
    again = Program.from_artifact(program.to_artifact())
    assert again.demand == demand
    assert again.digest == program.digest


def test_the_form_of_collectives_with_a_name_has_not_changed() -> None:
    demand = Demand(collective=Collective.GATHER, ranks=3, chunks=2, root=1)
    wanted = {"collective": "gather", "ranks": 3, "chunks": 2, "root": 1}
    assert demand_to_head(demand) == wanted


def test_programs_of_the_first_schema_are_refused() -> None:
    program = lower(templates.ring(Demand(collective=Collective.ALLGATHER, ranks=2)))
    old = dataclasses.replace(program.to_artifact(), schema=Program.SCHEMA - 1)
    with pytest.raises(ProgramError, match="'schema' is 1, needs 2: make the plan again"):
        Program.from_artifact(old, "old.plan")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ranks": None}, "'ranks': None is not an integer"),
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": 1 << 40}, "'ranks' is 1099511627776, needs 0 to"),
        ({"slots": 0}, "slots is 0, needs at least 1"),
        ({"slots": 1}, r"before: rank 1, slot 1 \(item 1\): needs a slot from 0 to 0"),
        ({"chunks": 0}, "chunks is 0"),
        ({"chunks": 1 << 24}, "chunks is 16777216, which makes 33554432 slots"),
        ({"collective": "everything"}, "'collective' is 'everything', needs one of allreduce"),
        ({"collective": ["custom"]}, "'collective' is .'custom'., needs one of"),
        ({"before": 5}, "'before': 5 is not a list"),
        ({"before": [[0, 0]]}, r"'before\[0\]' needs \[rank, slot, item\]"),
        ({"before": [[0, 0, 0.5]]}, r"'before\[0\]' needs"),
        ({"before": [[0, 0, 0, []]]}, "contributors are .., needs at least one"),
        ({"before": [[0, 0, 0, [0, 0]]]}, "needs each once"),
        ({"before": [[0, 0, 0, [3]]]}, "needs at least one rank from 0 to 2"),
        ({"before": [[3, 0, 0]]}, "before: rank 3.*needs a rank from 0 to 2"),
        ({"before": [[0, 0, 0], [0, 0, 1]]}, "the slot has two rows"),
        ({"before": [[0, 0, 0], [1, 1, 2]]}, "2 different items, but no item 1"),
        ({"before": [[0, 0, -1]]}, "item -1 of rank 0, slot 0"),
        ({"after": [[2, 0, 7]]}, "wants item 7 of rank 2, which no row of before has"),
        ({"after": [[2, 0, 0, [1]]]}, "wants item 0 of rank 1, which no row of before has"),
        ({"collective": "all_to_all_v"}, "'counts' is missing"),
        ({"collective": "all_to_all_v", "counts": [[1]]}, "counts has 1 rows, needs 3"),
        ({"collective": "all_to_all_v", "counts": [[1]] * 3}, r"counts\[0\] has 1 entries"),
        ({"collective": "all_to_all_v", "counts": [[-1] * 3] * 3}, r"counts\[0\]\[0\] is -1"),
        ({"collective": "all_to_all_v", "counts": [[1 << 50]]}, "'counts' has more than"),
        ({"collective": "all_to_all_v", "counts": "many"}, "'counts' needs a row of integers"),
    ],
)
def test_errors_name_the_field(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ProgramError, match=says) as caught:
        demand_from_head({**_EXAMPLE, **changes}, "my.json")
    assert str(caught.value).startswith("my.json: ")


@pytest.mark.parametrize("missing", sorted(_EXAMPLE))
def test_missing_fields_are_named(missing: str) -> None:
    head = {name: value for name, value in _EXAMPLE.items() if name != missing}
    with pytest.raises(ProgramError, match=f"field '{missing}' is missing"):
        demand_from_head(head)


def test_files_that_are_no_json(tmp_path: Path) -> None:
    for content in (b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"3"):
        path = tmp_path / "bad.json"
        path.write_bytes(content)
        with pytest.raises(ProgramError, match="bad.json"):
            demand_from_json(path)
    with pytest.raises(ProgramError, match="cannot be read"):
        demand_from_json(tmp_path / "none.json")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(string.printable, max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys([*_EXAMPLE, "counts", "root"], _JSON)))
def test_any_json_is_a_demand_or_a_clear_error(changes: dict[str, Any]) -> None:
    for collective in ("custom", "all_to_all_v", "reduce"):
        try:
            demand_from_head({**_EXAMPLE, "collective": collective, **changes})
        except ProgramError as error:
            assert str(error).startswith("demand: ")
