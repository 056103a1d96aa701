"""Batches through messages: the same columns and types, in fewer bytes."""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.embeddings import EmbeddingError
from headrace.embeddings.run.batch_messages import (
    decode_batch,
    decode_ids,
    encode_batch,
    encode_ids,
)
from headrace.embeddings.run.cacher.cacher import CacherOptions, IdBatch, dispatched
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.embeddings.tables import EmbeddingTable, InitialValues, table_groups

HASHED = InitialValues(scale=0.1)
TABLES = tuple(
    EmbeddingTable(name=str(number), rows=0, dim=dim, initial=HASHED)
    for number, dim in enumerate((2, 3, 2))
)
MISSING = 1 << 32


def assert_same(left: Any, right: Any, name: str = "") -> None:
    assert type(left) is type(right), name
    if is_dataclass(left):
        for field in fields(left):
            assert_same(getattr(left, field.name), getattr(right, field.name), field.name)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key], f"{name} {key}")
    elif isinstance(left, tuple):
        assert len(left) == len(right), name
        for one, two in zip(left, right, strict=True):
            assert_same(one, two, name)
    elif isinstance(left, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape), name
        np.testing.assert_array_equal(left, right, err_msg=name)
    else:
        assert left == right, name


def nbytes(message: RpcMessage) -> int:
    return sum(column.nbytes for column in message.columns.values())


@st.composite
def id_batches(draw: st.DrawFn) -> list[IdBatch]:
    """Batches of hashes of some width; numbers of rows of a table that need up to 16 bits."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    wide = draw(st.sampled_from([(1 << 32, 0), (1 << 32, MISSING), (1 << 63, 1 << 62)]))
    bag = draw(st.sampled_from([1, 3, 300]))
    batches: list[IdBatch] = []
    for _ in range(draw(st.integers(1, 3))):
        examples = draw(st.integers(0, 400))
        lengths = random.integers(0, bag, examples)
        counts = (examples, int(lengths.sum()), examples)
        ids = [random.integers(0, wide[0], count) for count in counts]
        ids[0][random.random(examples) < 0.3] = wide[1]
        batches.append(
            IdBatch(
                examples=examples,
                fields={
                    "labels": random.random(examples).astype(np.float32),
                    "pairs": random.integers(0, 9, (examples, 2), np.int16),
                },
                ids=tuple(ids),
                lengths=(None, lengths, None),
            )
        )
    return batches


@settings(max_examples=40, deadline=None)
@given(batches=id_batches(), trainers=st.sampled_from([1, 2, 5, 16, 17, 32]))
def test_batches_are_decoded_as_they_were(batches: list[IdBatch], trainers: int) -> None:
    options = CacherOptions(
        tables=TABLES,
        groups=table_groups(TABLES),
        slots=(1_000_000, 1_000_000),
        trainers=trainers,
        lookahead=2,
        commit_every=2,
    )
    passed = [decode_ids(encode_ids(batch)) for batch in batches]
    for batch, copy in zip(batches, passed, strict=True):
        assert_same(batch, copy)
    for parts in dispatched(passed, options):
        for part in parts:
            assert_same(part, decode_batch(encode_batch(part)))


@pytest.mark.parametrize(
    ("ids", "id_bytes"),
    [
        ([0, 7, (1 << 32) - 1], 12),
        ([0, MISSING, 5], 13),
        ([(7 << 32) + 3, 1, (7 << 32) + 4], 13),
        ([1 << 33, MISSING, 5], 24),
        ([(1 << 63) - 1, 0, 0], 13),
        ([-1, 0, 7], 24),
        ([-(1 << 63), MISSING, 7], 24),
        ([], 0),
    ],
)
def test_ids_take_half_their_bytes_unless_they_are_wide(ids: list[int], id_bytes: int) -> None:
    batch = IdBatch(examples=len(ids), fields={}, ids=(np.array(ids, np.int64),), lengths=(None,))
    message = encode_ids(batch)
    assert nbytes(message) == id_bytes
    assert decode_ids(message).ids[0].tolist() == ids


def test_negative_ids_are_still_refused_after_a_message() -> None:
    """In 32 bits such an id was that of another row: -2^63 trained row 0."""
    table = EmbeddingTable(name="t", rows=100, dim=2)
    options = CacherOptions(
        tables=(table,), groups=table_groups((table,)), slots=(100,), trainers=1
    )
    for wrong in (-1, 5 - (1 << 32), -(1 << 63)):
        batch = IdBatch(examples=2, fields={}, ids=(np.array([3, wrong]),), lengths=(None,))
        with pytest.raises(EmbeddingError, match=f"id {wrong}, needs 0 to 99"):
            list(dispatched([decode_ids(encode_ids(batch))], options))


def test_a_part_has_few_bytes_for_each_id_and_row() -> None:
    """A byte for each id of a small table, two of a larger one; six for a row of two trainers."""
    random = np.random.default_rng(0)
    ids = (random.integers(0, 200, 6000), random.integers(0, 30_000, 6000))
    tables = tuple(EmbeddingTable(name=str(rows), rows=rows, dim=2) for rows in (200, 30_000))
    batch = IdBatch(examples=6000, fields={}, ids=ids, lengths=(None, None))
    options = CacherOptions(
        tables=tables, groups=table_groups(tables), slots=(40_000,), trainers=2, lookahead=1
    )
    (parts,) = dispatched([batch], options)
    for part in parts:
        (group,) = part.groups
        rows, leaving = len(group.slots), len(group.evicted.ids)
        expected = 3000 * (1 + 2) + 6 * rows + 8 * group.used + 8 * leaving
        assert nbytes(encode_batch(part)) == expected + 4 * 5 * 2
