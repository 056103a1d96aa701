"""Examples as columns: parts, batches, and the ids of trainers' shares."""

import numpy as np
import pytest

from headrace.embeddings import EmbeddingError, Examples
from headrace.embeddings.data.examples import in_batches, merged_examples, share_ends


def examples(count: int, seed: int = 0, labelled: bool = True) -> Examples:
    """One table of single ids, and one of 0 to 3 ids each."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 4, count)
    return Examples(
        labels=generator.random(count).astype(np.float32) if labelled else None,
        dense=generator.random((count, 2)).astype(np.float32),
        ids=(generator.integers(0, 9, count), generator.integers(0, 9, lengths.sum())),
        lengths=(None, lengths),
    )


def bags(part: Examples) -> list[list[int]]:
    lengths = part.lengths[1]
    assert lengths is not None
    ends = np.cumsum(lengths)
    return [part.ids[1][end - n : end].tolist() for end, n in zip(ends, lengths, strict=True)]


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("size", [1, 7, 10, 40])
def test_batches_are_the_examples_in_their_order(size: int, labelled: bool) -> None:
    parts = [examples(count, seed, labelled) for seed, count in enumerate((3, 0, 15, 1, 19))]
    every = merged_examples(parts)
    cut = list(in_batches(iter(parts), size))
    assert [len(batch) for batch in cut[:-1]] == [size] * (38 // size - (38 % size == 0))
    assert (merged_examples(cut).dense == every.dense).all()
    assert (merged_examples(cut).ids[0] == every.ids[0]).all()
    assert [bag for batch in cut for bag in bags(batch)] == bags(every)
    assert (every.labels is None) == (cut[0].labels is None)


def test_a_part_has_its_own_ids() -> None:
    whole = examples(20)
    part = whole[4:11]
    assert (part.dense == whole.dense[4:11]).all()
    assert bags(part) == bags(whole)[4:11]
    with pytest.raises(EmbeddingError, match="step of 2"):
        whole[::2]


def test_tables_of_single_ids_join_those_of_several() -> None:
    single = Examples(
        labels=None,
        dense=np.zeros((2, 2), np.float32),
        ids=(np.arange(2), np.array([5, 6])),
        lengths=(None, None),
    )
    assert bags(merged_examples([examples(3, labelled=False), single]))[-2:] == [[5], [6]]


@pytest.mark.parametrize("parts", [1, 2, 3, 20])
def test_trainers_have_equal_shares_of_a_batch(parts: int) -> None:
    batch = examples(17)
    ends = share_ends(17, parts)
    counts = np.diff(ends, prepend=0)
    assert ends[-1] == 17
    assert counts.max() - counts.min() <= 1
    id_ends = batch.id_ends(parts)
    assert id_ends[0].tolist() == ends.tolist()
    assert id_ends[1].tolist() == [sum(map(len, bags(batch)[:end])) for end in ends]


def test_columns_of_other_lengths_are_refused() -> None:
    whole = examples(3)
    with pytest.raises(EmbeddingError, match="3 examples have 2 labels"):
        Examples(labels=np.zeros(2, np.float32), dense=whole.dense, ids=(), lengths=())
    with pytest.raises(EmbeddingError, match="table 0"):
        Examples(labels=None, dense=whole.dense, ids=(np.arange(4),), lengths=(None,))
    with pytest.raises(EmbeddingError, match="1 tables have 0 columns of lengths"):
        Examples(labels=None, dense=whole.dense, ids=(np.arange(3),), lengths=())
    with pytest.raises(EmbeddingError, match="0 examples"):
        list(in_batches([whole], 0))
    assert repr(whole) == "<Examples: 3, of 2 numbers and 2 tables>"


def test_the_first_shares_have_one_example_more() -> None:
    """Six examples of four trainers were shares of 2, 1, 2 and 1."""
    assert share_ends(6, 4).tolist() == [2, 4, 5, 6]
    assert share_ends(2, 4).tolist() == [1, 2, 2, 2]
    assert share_ends(8, 4).tolist() == [2, 4, 6, 8]
