"""Demands as JSON: standard collectives, uneven exchanges and custom demands.

A custom demand lists the value of every slot of every rank before and after:

.. code-block:: json

    {
      "collective": "custom",
      "ranks": 3,
      "slots": 2,
      "chunks": 1,
      "before": [[0, 0, 0], [1, 1, 1]],
      "after": [[2, 0, 0], [2, 1, 1], [1, 0, 0, [0]]]
    }

``ranks`` is their number and ``slots`` that of each rank's slots, all equally large. A row of
``before`` or ``after`` is ``[rank, slot, item, contributors]``: the slot holds the item, combined
from the contributing ranks. Items are numbered from 0 without gaps. Contributors may be left out:
in ``before`` it is then the rank itself, in ``after`` all that the item has anywhere in ``before``.
``collective`` may be left out, as may ``chunks``, into which every slot is cut. Slots
that ``after`` does not name may be overwritten.

The demand above moves item 0 from rank 0 to ranks 1 and 2, and item 1 from rank 1 to rank 2. One
that combines: ``"before": [[0, 0, 0], [1, 0, 0]], "after": [[1, 0, 0]]`` wants the sum of both at
rank 1.

An uneven exchange has ``"collective": "all_to_all_v"`` and ``"counts"``: a row for every source
with the number of equal parts for every destination. Any other collective has ``ranks``, ``chunks``
and, if it has one, ``root``. `headrace.collectives.demand` has the layout of slots.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from headrace import fields
from headrace.collectives.demand import Collective, Demand, DemandRow
from headrace.collectives.errors import ProgramError
from headrace.fields import Field
from headrace.files import parse_json, read_text

_MOST_RANKS = 1 << 16
_MOST_SLOTS = 1 << 24
_MOST_CONTRIBUTORS = 1 << 21
_MOST_BITS = 1 << 30
"""Rows of a custom demand times ranks: each row names its contributors by a bit for every rank."""


def demand_from_json(path: str | Path) -> Demand:
    """Read a demand from a JSON file.

    Raises
    ------
    ProgramError : naming the file and the field, what was found and what is needed.
    """
    head = parse_json(read_text(path, ProgramError), str(path), ProgramError)
    return demand_from_head(head, str(path))


def demand_to_head(demand: Demand) -> dict[str, Any]:
    """Return the JSON form, with all optional fields."""
    head: dict[str, Any] = {
        "collective": demand.collective.value,
        "ranks": demand.ranks,
        "chunks": demand.chunks,
        "root": demand.root,
    }
    if demand.collective is Collective.ALL_TO_ALL_V:
        head["counts"] = [list(row) for row in demand.counts]
    if demand.collective is Collective.CUSTOM:
        head["slots"] = demand.custom_slots
        for name, rows in (("before", demand.before), ("after", demand.after)):
            head[name] = [[rank, slot, item, list(by)] for rank, slot, item, by in rows]
    return head


def demand_from_head(head: Mapping[str, Any], source: str = "demand") -> Demand:
    """Parse the JSON form; other fields are ignored.

    Raises
    ------
    ProgramError : naming the field, what was found and what is needed.
    """
    fields_of_head = Field(head, source, ProgramError)
    name = fields_of_head.at("collective", default=Collective.CUSTOM.value)
    if name.found not in tuple(Collective):
        raise name.wrong(f"one of {', '.join(Collective)}")
    collective = Collective(name.found)
    counts = _matrix(fields_of_head.at("counts")) if collective is Collective.ALL_TO_ALL_V else ()
    if counts and "ranks" not in head:
        fields_of_head = fields_of_head.holding({**head, "ranks": len(counts)})
    ranks = fields_of_head.at("ranks").integer(0, _MOST_RANKS)
    chunks = fields_of_head.at("chunks", default=1).integer(0, _MOST_SLOTS)
    root = fields_of_head.at("root", default=0).integer(0, _MOST_RANKS)
    if collective is Collective.CUSTOM:
        slots = fields_of_head.at("slots").integer(0, _MOST_SLOTS)
        before = _rows(fields_of_head.at("before"), {})
        contributors_of: dict[int, set[int]] = {}
        for _, _, item, contributors in before:
            contributors_of.setdefault(item, set()).update(contributors)
        after = _rows(fields_of_head.at("after"), contributors_of)
        if ranks * len(before + after) > _MOST_BITS:
            raise fields_of_head.fail(
                f"before and after have {len(before + after)} rows for {ranks} ranks, needs at "
                f"most {_MOST_BITS // ranks} rows for so many ranks"
            )
        custom = partial(Demand.custom, slots=slots, before=before, after=after)
    else:
        custom = partial(Demand, collective=collective, root=root, counts=counts)
    try:
        return _not_too_large(custom(ranks=ranks, chunks=chunks))
    except ProgramError as error:
        raise ProgramError(f"{source}: {error}") from error


def _not_too_large(demand: Demand) -> Demand:
    if demand.slots > _MOST_SLOTS:
        raise ProgramError(
            f"chunks is {demand.chunks}, which makes {demand.slots} slots a rank; needs at most "
            f"{_MOST_SLOTS}"
        )
    return demand


def _matrix(field: Field) -> tuple[tuple[int, ...], ...]:
    counts = field.read(
        lambda rows: tuple(
            tuple(map(fields.integer, fields.items(row))) for row in fields.items(rows)
        ),
        "a row of integers for every rank",
    )
    if sum(max(0, count) for row in counts for count in row) > _MOST_SLOTS:
        raise field.fail(f"has more than {_MOST_SLOTS} parts")
    return counts


def _rows(field: Field, contributors_of: dict[int, set[int]]) -> list[DemandRow]:
    """Return the rows of a field; contributors left out are `contributors_of` it, or the rank."""
    named = 0
    in_before = {item: tuple(sorted(by)) for item, by in contributors_of.items()}

    def held(row: Any) -> DemandRow:
        cells = fields.items(row)
        if len(cells) not in (3, 4):
            raise TypeError(f"{fields.shown(cells)} has {len(cells)} entries")
        rank, slot, item = map(fields.integer, cells[:3])
        if len(cells) == 3:
            return rank, slot, item, in_before.get(item, (rank,))
        return rank, slot, item, tuple(map(fields.integer, fields.items(cells[3])))

    rows: list[DemandRow] = []
    for row in field.items():
        rows.append(row.read(held, "[rank, slot, item] or [rank, slot, item, contributors]"))
        named += len(rows[-1][3])
        if named > _MOST_CONTRIBUTORS:
            raise row.fail(
                f"is too much: the rows so far have {named} contributors in all, those left out "
                f"counted, needs at most {_MOST_CONTRIBUTORS}"
            )
    return rows
