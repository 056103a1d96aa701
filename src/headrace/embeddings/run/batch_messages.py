"""Batches as messages: trainers' parts from the cacher, ids from readers.

Columns are as narrow as their numbers allow, as they are shaped on the network with all other
traffic of a step. The bytes of rows are those of their slots and bits; numbers of rows in a table
that has up to 256 of them in the batch take a byte.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.run.batches import GroupBatch, SlottedRows, TrainerBatch
from headrace.embeddings.run.cacher.cacher import IdBatch
from headrace.embeddings.run.rpc.messages import RpcMessage

MessageColumns = Mapping[str, NDArray[Any]]

_UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)
_LISTS = ("fetched", "evicted", "dirty")
_CRITICAL = 7
"""Bit of a row's byte: its lower ones are the owner's number, below 32."""


def encode_batch(batch: TrainerBatch) -> RpcMessage:
    """Return one trainer's part of a batch as a message."""
    columns: dict[str, NDArray[Any]] = {}
    _put_examples(columns, batch.fields, batch.lengths)
    groups = [_put_group(columns, f"{number} ", group) for number, group in enumerate(batch.groups)]
    head: dict[str, Any] = {
        "batch": batch.batch,
        "commit": batch.commit,
        "prefetch": batch.prefetch,
        "examples": batch.examples,
        "examples in all": batch.examples_in_all,
        "fields": [*batch.fields],
        "tables": len(batch.lengths),
        "groups": groups,
    }
    if batch.padding:
        head["padding"] = batch.padding
    return RpcMessage(head=head, columns=columns)


def decode_batch(message: RpcMessage) -> TrainerBatch:
    """Return the part of a batch that a message was made of."""
    head, columns = message.head, message.columns
    return TrainerBatch(
        batch=head["batch"],
        commit=head["commit"],
        prefetch=head["prefetch"],
        examples=head["examples"],
        examples_in_all=head["examples in all"],
        fields=_fields(columns, head["fields"]),
        lengths=_lengths(columns, head["tables"]),
        groups=tuple(
            _group(columns, f"{number} ", group) for number, group in enumerate(head["groups"])
        ),
        padding=tuple(head.get("padding", ())),
    )


def encode_ids(batch: IdBatch) -> RpcMessage:
    """Return a batch of ids as a message."""
    columns: dict[str, NDArray[Any]] = {}
    _put_examples(columns, batch.fields, batch.lengths)
    high = _put_ids(columns, "ids", np.concatenate([np.empty(0, np.int64), *batch.ids]))
    head = {
        "examples": batch.examples,
        "fields": [*batch.fields],
        "tables": len(batch.lengths),
        "ends": np.cumsum([len(ids) for ids in batch.ids]).tolist(),
        "high": high,
    }
    return RpcMessage(head=head, columns=columns)


def decode_ids(message: RpcMessage) -> IdBatch:
    """Return the batch of ids that a message was made of."""
    head, columns = message.head, message.columns
    ids = _ids(columns, "ids", head["high"])
    return IdBatch(
        examples=head["examples"],
        fields=_fields(columns, head["fields"]),
        ids=tuple(np.split(ids, head["ends"])[:-1]),
        lengths=_lengths(columns, head["tables"]),
    )


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return numbers that are not negative in the smallest type that has all of them."""
    most = int(numbers.max(initial=0))
    return numbers.astype(next(kind for kind in _UNSIGNED if most <= np.iinfo(kind).max))


def _put_examples(
    columns: dict[str, NDArray[Any]],
    fields: Mapping[str, NDArray[Any]],
    lengths: Sequence[NDArray[np.int64] | None],
) -> None:
    columns.update((f"field {name}", column) for name, column in fields.items())
    for table, counts in enumerate(lengths):
        if counts is not None:
            columns[f"lengths {table}"] = _narrow(counts)


def _fields(columns: MessageColumns, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    return {name: columns[f"field {name}"] for name in names}


def _lengths(columns: MessageColumns, tables: int) -> tuple[NDArray[np.int64] | None, ...]:
    lengths = (columns.get(f"lengths {table}") for table in range(tables))
    return tuple(None if counts is None else counts.astype(np.int64) for counts in lengths)


def _put_ids(columns: dict[str, NDArray[Any]], name: str, ids: NDArray[np.int64]) -> int:
    """Add 64-bit ids in 32 bits where their upper halves are zeros and one other number.

    Criteo's empty fields are the id 2^32.

    Returns
    -------
    That number; -1: the ids are in 64 bits.
    """
    # Of negative ids, which the cacher refuses by name, this is no upper half of one below.
    high = int(ids.view(np.uint64).max(initial=0)) >> 32
    if high:
        upper = ids >> 32
        marked = upper != 0
        if not np.array_equal(upper[marked], np.full(np.count_nonzero(marked), high)):
            columns[name] = ids
            return -1
        columns[f"{name} marked"] = np.packbits(marked)
    columns[name] = ids.astype(np.uint32)
    return high


def _ids(columns: MessageColumns, name: str, high: int) -> NDArray[np.int64]:
    ids: NDArray[np.int64] = columns[name].astype(np.int64, copy=False)
    if high > 0:
        marked = np.unpackbits(columns[f"{name} marked"], count=len(ids)).view(np.bool_)
        ids += marked * np.int64(high << 32)
    return ids


def _put_group(columns: dict[str, NDArray[Any]], prefix: str, group: GroupBatch) -> dict[str, Any]:
    """Add the columns of a group; return its entries of the head."""
    listed = [getattr(group, name) for name in _LISTS]
    bits = int(np.bitwise_or.reduce(group.users | group.next_users, initial=0)).bit_length()
    kind = next(kind for kind in _UNSIGNED if 2 * bits <= np.iinfo(kind).bits)
    owners = group.critical.view(np.uint8) << _CRITICAL
    owners |= group.owners
    trainers = group.next_users.astype(kind)
    trainers <<= kind(bits)
    trainers |= group.users.astype(kind)
    columns[f"{prefix}ends"] = np.stack(
        [group.used_ends, group.id_ends, *(rows.ends for rows in listed)]
    ).astype(np.uint32)
    columns[f"{prefix}slots"] = group.slots
    columns[f"{prefix}trainers"] = trainers
    columns[f"{prefix}owners"] = owners
    columns.update(
        (f"{prefix}{name} slots", rows.slots) for name, rows in zip(_LISTS, listed, strict=True)
    )
    parts = _parts(group.rows_of_ids, group.id_ends)
    for width, tables in _tables_by_width(group.used_ends).items():
        columns[f"{prefix}rows {width}"] = np.concatenate(
            [parts[table] for table in tables], dtype=f"u{width}", casting="unsafe"
        )
    return {
        "after": group.after,
        "used": group.used,
        "bits": bits,
        "high": [
            _put_ids(columns, f"{prefix}{name}", rows.ids)
            for name, rows in zip(_LISTS, listed, strict=True)
        ],
    }


def _group(columns: MessageColumns, prefix: str, head: Mapping[str, Any]) -> GroupBatch:
    used_ends, id_ends, *ends = columns[f"{prefix}ends"].astype(np.int64)
    listed = {
        name: SlottedRows(
            ends=ends_of_tables,
            ids=_ids(columns, f"{prefix}{name}", high),
            slots=columns[f"{prefix}{name} slots"],
        )
        for name, ends_of_tables, high in zip(_LISTS, ends, head["high"], strict=True)
    }
    owners, trainers = columns[f"{prefix}owners"], columns[f"{prefix}trainers"]
    bits = trainers.dtype.type(head["bits"])
    rows_of_ids = np.empty(id_ends[-1], np.uint32)
    parts = _parts(rows_of_ids, id_ends)
    for width, tables in _tables_by_width(used_ends).items():
        numbers = columns[f"{prefix}rows {width}"]
        start = 0
        for table in tables:
            part = parts[table]
            part[:] = numbers[start : start + len(part)]
            start += len(part)
    return GroupBatch(
        after=head["after"],
        used=head["used"],
        used_ends=used_ends,
        slots=columns[f"{prefix}slots"],
        users=(trainers & trainers.dtype.type((1 << head["bits"]) - 1)).astype(np.uint32),
        next_users=(trainers >> bits).astype(np.uint32),
        owners=owners & np.uint8((1 << _CRITICAL) - 1),
        critical=(owners >> np.uint8(_CRITICAL)).view(np.bool_),
        rows_of_ids=rows_of_ids,
        id_ends=id_ends,
        **listed,
    )


def _parts(column: NDArray[Any], ends: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return a column's part of each table."""
    stops = ends.tolist()
    return [column[start:stop] for start, stop in zip([0, *stops[:-1]], stops, strict=True)]


def _tables_by_width(used_ends: NDArray[np.int64]) -> dict[int, list[int]]:
    """Return tables by the bytes that a number of one of their used rows needs."""
    counts = np.diff(used_ends, prepend=0)
    widths = np.select([counts <= 1 << 8, counts <= 1 << 16], [1, 2], 4)
    tables: dict[int, list[int]] = {}
    for table, width in enumerate(widths.tolist()):
        tables.setdefault(width, []).append(table)
    return tables
