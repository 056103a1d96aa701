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
from pathlib import Path
from typing import Any

from headrace import fields
from headrace.collectives.demand import Collective, Demand, Held
from headrace.collectives.errors import ProgramError
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
    if not isinstance(head, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ProgramError(f"{source}: is {fields.shown(head)}, needs an object")
    name = head.get("collective", Collective.CUSTOM.value)
    if name not in tuple(Collective):
        raise ProgramError(
            f"{source}: field 'collective' is {fields.shown(name)}, needs one of "
            f"{', '.join(Collective)}"
        )
    collective = Collective(name)
    counts = _matrix(head, source) if collective is Collective.ALL_TO_ALL_V else ()
    if counts and "ranks" not in head:
        head = {**head, "ranks": len(counts)}
    ranks = _integer(head, "ranks", source, most=_MOST_RANKS)
    chunks = _integer(head, "chunks", source, most=_MOST_SLOTS, default=1)
    root = _integer(head, "root", source, most=_MOST_RANKS, default=0)
    try:
        if collective is not Collective.CUSTOM:
            demand = Demand(
                collective=collective, ranks=ranks, chunks=chunks, root=root, counts=counts
            )
            return _not_too_large(demand)
        slots = _integer(head, "slots", source, most=_MOST_SLOTS)
        before = _rows(head, "before", source, {})
        known: dict[int, set[int]] = {}
        for _, _, item, contributors in before:
            known.setdefault(item, set()).update(contributors)
        after = _rows(head, "after", source, known)
        _check_bits(ranks, len(before) + len(after))
        return _not_too_large(
            Demand.custom(ranks=ranks, slots=slots, chunks=chunks, before=before, after=after)
        )
    except ProgramError as error:
        if str(error).startswith(source):
            raise
        raise ProgramError(f"{source}: {error}") from error


def _not_too_large(demand: Demand) -> Demand:
    if demand.slots > _MOST_SLOTS:
        raise ProgramError(
            f"chunks is {demand.chunks}, which makes {demand.slots} slots a rank; needs at most "
            f"{_MOST_SLOTS}"
        )
    return demand


def _check_bits(ranks: int, rows: int) -> None:
    if ranks * rows > _MOST_BITS:
        raise ProgramError(
            f"before and after have {rows} rows for {ranks} ranks, needs at most "
            f"{_MOST_BITS // ranks} rows for so many ranks"
        )


def _integer(
    head: Mapping[str, Any], name: str, source: str, *, most: int, default: int | None = None
) -> int:
    if name not in head and default is None:
        raise ProgramError(f"{source}: field '{name}' is missing")
    try:
        found = fields.integer(head.get(name, default))
    except TypeError as error:
        raise ProgramError(f"{source}: field '{name}': {error}") from error
    if found > most:
        raise ProgramError(f"{source}: field '{name}' is {found}, needs at most {most}")
    return found


def _matrix(head: Mapping[str, Any], source: str) -> tuple[tuple[int, ...], ...]:
    if "counts" not in head:
        raise ProgramError(f"{source}: field 'counts' is missing")
    try:
        rows = fields.items(head["counts"])
        counts = tuple(tuple(map(fields.integer, fields.items(row))) for row in rows)
    except TypeError as error:
        raise ProgramError(
            f"{source}: field 'counts' needs a row of integers for every rank: {error}"
        ) from error
    if sum(max(0, count) for row in counts for count in row) > _MOST_SLOTS:
        raise ProgramError(f"{source}: field 'counts' has more than {_MOST_SLOTS} parts")
    return counts


def _rows(
    head: Mapping[str, Any], name: str, source: str, known: dict[int, set[int]]
) -> list[Held]:
    """Return the rows of field `name`; contributors left out are those `known`, or the rank."""
    if name not in head:
        raise ProgramError(f"{source}: field '{name}' is missing")
    made: list[Held] = []
    named = 0
    in_before = {item: tuple(sorted(by)) for item, by in known.items()}
    try:
        rows = fields.items(head[name])
    except TypeError as error:
        raise ProgramError(f"{source}: field '{name}': {error}") from error
    for k, row in enumerate(rows):
        try:
            cells = fields.items(row)
            if len(cells) not in (3, 4):
                raise TypeError(f"{fields.shown(cells)} has {len(cells)} entries")
            rank, slot, item = map(fields.integer, cells[:3])
            given = map(fields.integer, fields.items(cells[3])) if len(cells) == 4 else None
            contributors = in_before.get(item, (rank,)) if given is None else tuple(given)
            made.append((rank, slot, item, contributors))
            named += len(made[-1][3])
        except TypeError as error:
            raise ProgramError(
                f"{source}: field '{name}[{k}]' needs [rank, slot, item] or "
                f"[rank, slot, item, contributors]: {error}"
            ) from error
        if named > _MOST_CONTRIBUTORS:
            raise ProgramError(
                f"{source}: field '{name}[{k}]': the rows so far have {named} contributors in all, "
                f"those left out counted, needs at most {_MOST_CONTRIBUTORS}"
            )
    return made
