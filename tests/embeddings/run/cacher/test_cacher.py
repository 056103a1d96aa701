"""The cacher's stream against the lookahead's decisions, taken apart row by row."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.embeddings.data.examples import Examples
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.profile import Synchronisation
from headrace.embeddings.run.batch_messages import decode_batch, encode_batch
from headrace.embeddings.run.batches import GroupBatch
from headrace.embeddings.run.cacher.cacher import (
    CACHES,
    CacherOptions,
    IdBatch,
    dispatched,
    id_batch,
)
from headrace.embeddings.tables import EmbeddingTable, InitialValues, table_groups
from tests.embeddings.run.cache_design import CacheDesign
from tests.embeddings.run.dispatch import Job, decisions, group_batches

SCALE = InitialValues(scale=0.1)
TABLES = (
    EmbeddingTable(name="items", rows=9, dim=4),
    EmbeddingTable(name="users", rows=0, dim=2, initial=SCALE),
    EmbeddingTable(name="shops", rows=9, dim=4),
)


def options(**changes: object) -> CacherOptions:
    values = {
        "tables": TABLES,
        "groups": table_groups(TABLES),
        "slots": (60, 60),
        "trainers": 2,
        "lookahead": 2,
        "prefetch": 1,
    }
    return CacherOptions(**(values | changes))  # pyright: ignore[reportArgumentType]


@st.composite
def id_batches(draw: st.DrawFn) -> list[IdBatch]:
    """Batches of different sizes: one id for each item, some for each user, one for each shop."""
    batches: list[IdBatch] = []
    for number in range(draw(st.integers(1, 8))):
        examples = draw(st.integers(0, 7))
        ids = st.lists(st.integers(0, 8), min_size=examples, max_size=examples)
        bags = draw(
            st.lists(st.lists(st.integers(0, 8), max_size=3), min_size=examples, max_size=examples)
        )
        batches.append(
            IdBatch(
                examples=examples,
                fields={"labels": np.arange(examples) + 100 * number},
                ids=(
                    np.array(draw(ids), np.int64),
                    np.array([*chain.from_iterable(bags)], np.int64),
                    np.array(draw(ids), np.int64),
                ),
                lengths=(None, np.array([*map(len, bags)], np.int64), None),
            )
        )
    return batches


def trainers_ids(batch: IdBatch, table: int, trainers: int) -> list[list[int]]:
    """Return a table's ids by trainer; the first shares have one example more."""
    lengths = batch.lengths[table]
    counts = [1] * batch.examples if lengths is None else lengths.tolist()
    ids = iter(batch.ids[table].tolist())
    bags = iter([[next(ids) for _ in range(count)] for count in counts])
    shares = [
        batch.examples // trainers + (trainer < batch.examples % trainers)
        for trainer in range(trainers)
    ]
    return [[*chain.from_iterable(next(bags) for _ in range(share))] for share in shares]


def assert_equal(part: GroupBatch, expected: GroupBatch) -> None:
    for name in GroupBatch.__dataclass_fields__:
        values = [getattr(group, name) for group in (part, expected)]
        columns = (
            [(values[0], values[1])]
            if name not in ("fetched", "evicted", "dirty")
            else [
                tuple(getattr(rows, column) for rows in values)
                for column in ("ends", "ids", "slots")
            ]
        )
        for column, reference in columns:
            np.testing.assert_array_equal(column, reference, err_msg=name)
            assert getattr(column, "dtype", None) == getattr(reference, "dtype", None), name


@settings(max_examples=100, deadline=None)
@given(
    batches=id_batches(),
    trainers=st.integers(1, 4),
    lookahead=st.integers(1, 4),
    room=st.integers(0, 12),
    synchronisation=st.sampled_from([*CACHES]),
    first_batch=st.sampled_from([0, 1000]),
    commit_every=st.integers(0, 3),
)
def test_each_trainer_gets_its_part_of_every_group(
    batches: list[IdBatch],
    trainers: int,
    lookahead: int,
    room: int,
    synchronisation: Synchronisation,
    first_batch: int,
    commit_every: int,
) -> None:
    groups = table_groups(TABLES)
    slots = tuple(
        room
        + max(
            1,
            *(sum(len(np.unique(batch.ids[table])) for table in group.tables) for batch in batches),
        )
        for group in groups
    )
    job_options = options(
        trainers=trainers,
        lookahead=lookahead,
        slots=slots,
        synchronisation=synchronisation,
        commit_every=commit_every,
    )
    stream = [*dispatched(batches, job_options, first_batch=first_batch)]
    assert [parts[0].batch - first_batch for parts in stream] == [*range(len(batches))]
    for part in chain.from_iterable(stream):
        assert part.commit == (commit_every > 0 and (part.batch + 1) % commit_every == 0)
    for number, group in enumerate(groups):
        job = Job(
            rows=tuple(TABLES[table].rows for table in group.tables),
            trainers=trainers,
            lookahead=lookahead,
            prefetch=1,
            slots=slots[number],
            batches=[
                [trainers_ids(batch, table, trainers) for table in group.tables]
                for batch in batches
            ],
        )
        design = CacheDesign(synchronisation, trainers, slots[number])
        decided = decisions(job, first_batch=first_batch, commit_every=commit_every)
        for parts, decision, ids in zip(stream, decided, job.batches, strict=True):
            references = group_batches(decision, ids, trainers, design.columns(decision))
            for part, reference in zip(parts, references, strict=True):
                assert_equal(part.groups[number], reference)
    for parts, batch in zip(stream, batches, strict=True):
        assert {part.examples_in_all for part in parts} == {batch.examples}
        assert [part.examples for part in parts] == sorted(
            (len(part.fields["labels"]) for part in parts), reverse=True
        )
        labels = np.concatenate([part.fields["labels"] for part in parts])
        np.testing.assert_array_equal(labels, batch.fields["labels"])
        lengths = np.concatenate([part.lengths[1] for part in parts if part.lengths[1] is not None])
        np.testing.assert_array_equal(lengths, batch.lengths[1])


def item_batch(*ids: int) -> IdBatch:
    return IdBatch(examples=len(ids), fields={}, ids=(np.array(ids, np.int64),), lengths=(None,))


ITEMS = options(tables=TABLES[:1], groups=table_groups(TABLES[:1]), slots=(4,), lookahead=None)


@pytest.mark.parametrize(
    ("batches", "lookahead"),
    [
        ([(0, 1), (1, 2), (3, 0), (4, 5), (6, 7)], 3),  # the fourth batch would be the fifth row
        ([(0, 1), (1, 2)], 2),  # the data end before the cache is full
        ([(0, 1, 2, 3), (4, 5, 6, 7)], 1),
    ],
)
def test_the_lookahead_is_the_batches_that_fill_the_cache(
    batches: list[tuple[int, ...]], lookahead: int
) -> None:
    lookaheads: list[int] = []
    stream = [*dispatched([item_batch(*ids) for ids in batches], ITEMS, lookaheads.append)]
    assert lookaheads == [lookahead]
    assert [parts[0].batch for parts in stream] == [*range(len(batches))]


def test_wrong_batches_are_errors_that_name_batch_and_table() -> None:
    with pytest.raises(
        EmbeddingError, match="^batch 1, example 0: table items: id 9, needs 0 to 8"
    ):
        list(dispatched([item_batch(1, 2), item_batch(9)], ITEMS))
    with pytest.raises(
        EmbeddingError, match="^batch 0 has 5 distinct rows of items, more than the"
    ):
        list(dispatched([item_batch(0, 1, 2, 3, 4)], ITEMS))
    with pytest.raises(EmbeddingError, match="batch 0 has ids of 1 tables, needs 3"):
        list(dispatched([item_batch(1)], options()))
    with pytest.raises(EmbeddingError, match="prefetch is 3, needs 1 to 2"):
        list(dispatched([item_batch(1)], options(prefetch=3)))
    with pytest.raises(EmbeddingError, match="need each of the 3 once"):
        options(groups=table_groups(TABLES[:1]))
    with pytest.raises(EmbeddingError, match="synchronisation is pooled, which has no caches"):
        options(synchronisation=Synchronisation.POOLED)
    with pytest.raises(EmbeddingError, match="field labels has 1 rows"):
        IdBatch(examples=2, fields={"labels": np.zeros(1)}, ids=(), lengths=())


def test_examples_are_batches_with_labels_and_numbers_as_fields() -> None:
    dense = np.ones((2, 13), np.float32)
    ids = (np.array([1, 2]),)
    labelled = Examples(labels=np.zeros(2, np.float32), dense=dense, ids=ids, lengths=(None,))
    assert [*id_batch(labelled).fields] == ["dense", "labels"]
    unlabelled = Examples(labels=None, dense=dense, ids=ids, lengths=(None,))
    assert [*id_batch(unlabelled).fields] == ["dense"]


def test_parts_say_where_the_padding_is() -> None:
    padded = (replace(TABLES[0], padding=3), TABLES[1], replace(TABLES[2], padding=0))
    batch = IdBatch(
        examples=3,
        fields={},
        ids=(np.array([3, 1, 3]), np.array([3]), np.array([5, 5, 5])),
        lengths=(None, np.array([0, 1, 0]), None),
    )
    ((first, second),) = dispatched([batch], options(tables=padded))
    assert (first.padding, second.padding) == ((0, -1, -1), (0, -1, -1))
    assert decode_batch(encode_batch(second)).padding == (0, -1, -1)
    ((plain, _),) = dispatched([batch], options())
    assert decode_batch(encode_batch(plain)).padding == ()
