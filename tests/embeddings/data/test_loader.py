"""Batches of a script's own loader."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from headrace.embeddings import EmbeddingError, LoaderData

DENSE = np.arange(6, dtype=np.float64).reshape(3, 2)
IDS = np.array([[1, 5], [2, 6], [3, 7]], np.int32)
LABELS = np.array([0, 1, 1])


def data(*batches: Any) -> LoaderData:
    return LoaderData(batches, batch=3, columns=2)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_batches_are_examples_with_a_column_of_ids_each(convert: Any) -> None:
    loaded = data((convert(DENSE), convert(IDS), convert(LABELS)), [convert(DENSE), convert(IDS)])
    labelled, unlabelled = loaded.read()
    assert labelled.dense.dtype == np.float32
    assert labelled.dense.tolist() == DENSE.tolist()
    assert [column.tolist() for column in labelled.ids] == [[1, 2, 3], [5, 6, 7]]
    assert all(column.dtype == np.int64 for column in labelled.ids)
    assert labelled.labels is not None
    assert labelled.labels.dtype == np.float32
    assert labelled.labels.tolist() == [0, 1, 1]
    assert unlabelled.labels is None
    assert loaded.first(2).ids[1].tolist() == [5, 6]
    assert (loaded.batch, loaded.columns) == (3, 2)


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ({"ids": IDS}, "batch 0 of the loader is a dict, needs"),
        ((DENSE, IDS, LABELS, LABELS), "batch 0 of the loader is a tuple, needs"),
        ((DENSE, IDS.astype(np.float32)), "has ids of float32 and shape"),
        ((DENSE, IDS[:, :1]), r"shape \(3, 1\), needs integers of \[examples, 2\]"),
        ((DENSE[:2], IDS), r"dense features of shape \(2, 2\) beside ids of 3 examples"),
        ((DENSE[:, 0], IDS), r"dense features of shape \(3,\) beside"),
        ((DENSE, IDS, LABELS[:2]), "3 examples have 2 labels"),
        (
            (DENSE, IDS.astype(np.uint64) << 61),
            r"has id 16140901064495857664, needs less than 2\^63",
        ),
        ((DENSE, IDS.astype(np.int64) - 6), "batch 0 of the loader has id -5, needs 0 or more"),
        ((DENSE, np.full((3, 2), -(1 << 63))), "has id -9223372036854775808, needs 0 or more"),
        ((np.zeros((4, 2)), np.zeros((4, 2), np.int64)), "of 3 at most"),
        ((torch.zeros(3, 2, dtype=torch.bfloat16), IDS), "that NumPy does not read, .*BFloat16"),
        ((torch.zeros(3, 2, requires_grad=True), IDS), "that NumPy does not read, .*requires grad"),
        (([[1.0], [1.0, 2.0]], IDS), "that NumPy does not read, .*inhomogeneous"),
    ],
)
def test_other_batches_are_refused(batch: Any, text: str) -> None:
    with pytest.raises(EmbeddingError, match=text):
        next(data(batch).read())


def test_wrong_sizes_and_a_loader_without_batches() -> None:
    with pytest.raises(EmbeddingError, match="batch of a loader's data is 0, needs 1 or more"):
        LoaderData([], batch=0, columns=1)
    with pytest.raises(EmbeddingError, match="columns of a loader's data is 0, needs 1 or more"):
        LoaderData([], batch=1, columns=0)
    with pytest.raises(EmbeddingError, match="the loader has no batch"):
        data().first(1)


def test_the_loaders_sampler_learns_the_epoch() -> None:
    examples = TensorDataset(torch.zeros(8))
    sampler = DistributedSampler(examples, num_replicas=1, rank=0)
    loader = DataLoader(examples, sampler=sampler)
    LoaderData(loader, batch=1, columns=1).set_epoch(5)
    assert sampler.epoch == 5
    LoaderData([], batch=1, columns=1).set_epoch(5)


def test_a_generator_is_read_once() -> None:
    """A second read lacked the batches of the first: one batch, or a whole later epoch."""
    batches = [(np.zeros((2, 1)), np.zeros((2, 3), np.int64))] * 2
    data = LoaderData(iter(batches), batch=2, columns=3)
    assert len(list(data.read())) == 2
    for read in (lambda: list(data.read()), lambda: data.first(1)):
        with pytest.raises(EmbeddingError, match="list_iterator, whose batches can be read once"):
            read()
