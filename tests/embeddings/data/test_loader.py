"""Batches of a script's own loader."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

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


@pytest.mark.parametrize("labels", [LABELS, LABELS[:, None], IDS])
def test_labels_have_the_form_of_the_loader(labels: np.ndarray) -> None:
    """Of [examples, 1] losses paired every score with every label; those of tasks were refused."""
    (examples,) = data((DENSE, IDS, labels)).read()
    assert examples.labels is not None
    assert examples.labels.tolist() == labels.tolist()
    assert examples[1:].labels is not None
    assert examples[1:].labels.tolist() == labels[1:].tolist()


@pytest.mark.parametrize("columns", [1, 2])
def test_a_loader_may_fill_the_memory_of_a_batch_again(columns: int) -> None:
    """Batches that were read ahead had the dense features of later ones, and ids of a column."""

    def batches() -> Iterator[tuple[np.ndarray, ...]]:
        dense, ids = np.empty((2, 3), np.float32), np.empty((2, columns), np.int64)
        for number in range(3):
            dense[:] = ids[:] = number
            yield dense, ids, ids[:, 0]

    loaded = LoaderData(batches(), batch=2, columns=columns)
    for number, examples in enumerate([*loaded.read()]):
        assert (examples.dense == number).all()
        assert all((column == number).all() for column in examples.ids)
        assert (examples.labels == number).all()


def test_a_label_of_a_single_example_may_be_a_number() -> None:
    (examples,) = data((DENSE[:1], IDS[:1], np.float64(2))).read()
    assert examples.labels is not None
    assert examples.labels.tolist() == [2]


def test_the_first_examples_are_behind_empty_batches() -> None:
    """fit ran the model on none: "forward uses ids as indices elsewhere"."""
    assert len(data((DENSE[:0], IDS[:0]), (DENSE, IDS)).first(2)) == 2
    with pytest.raises(EmbeddingError, match="the loader has no batch with examples"):
        data((DENSE[:0], IDS[:0])).first(2)


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ({"ids": IDS}, "batch 0 of the loader is a dict, needs"),
        ((DENSE, IDS, LABELS, LABELS), "batch 0 of the loader is a tuple, needs"),
        ((DENSE, IDS.astype(np.float32)), "has ids of float32 and shape"),
        ((DENSE, IDS[:, :1]), r"shape \(3, 1\), needs integers of \[examples, 2\]"),
        ((DENSE[:2], IDS), r"dense features of shape \(2, 2\) beside ids of 3 examples"),
        ((DENSE[:, 0], IDS), r"dense features of shape \(3,\) beside"),
        ((DENSE.astype("U3"), IDS), "batch 0 of the loader has dense features of <U3, needs numb"),
        (
            (DENSE, IDS, LABELS[:2]),
            r"3 examples have labels of \w+ and shape \(2,\), needs numbers",
        ),
        ((DENSE, IDS, LABELS[None]), r"batch 0 of the loader: 3 examples .* shape \(1, 3\), needs"),
        ((DENSE, IDS, None), r"3 examples have labels of object and shape \(\), needs numbers"),
        ((DENSE, IDS, LABELS.astype("U1")), r"labels of <U1 and shape \(3,\), needs numbers"),
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
    with pytest.raises(EmbeddingError, match=r"batch of a loader's data is 4\.0, needs .* an int"):
        LoaderData([], batch=cast("int", 4.0), columns=1)
    with pytest.raises(EmbeddingError, match="columns of a loader's data is 0, needs 1 or more"):
        LoaderData([], batch=1, columns=0)
    with pytest.raises(EmbeddingError, match="the loader has no batch"):
        data().first(1)


def test_a_loader_of_one_replica_s_examples_is_refused() -> None:
    """A trainer had its part of every third example, and nothing said so."""
    sampler = DistributedSampler(EXAMPLES, num_replicas=3, rank=1)
    with pytest.raises(EmbeddingError, match="DistributedSampler is one of 3 replicas, needs all"):
        loader_of(sampler=sampler)


EXAMPLES = TensorDataset(torch.zeros(8, 1), torch.arange(8)[:, None])


class Endless(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """A dataset without indices."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return iter(EXAMPLES)


class Reshuffled(Endless):
    """A dataset whose order is that of an epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def loader_of(**options: Any) -> LoaderData:
    """Return the data of a loader as a process of its own makes it."""
    return LoaderData(DataLoader(EXAMPLES, batch_size=3, **options), batch=3, columns=1)


def shuffled(seed: int = 3) -> LoaderData:
    return loader_of(shuffle=True, generator=torch.Generator().manual_seed(seed))


def order_of(loaded: LoaderData, epoch: int, *, alone: bool) -> list[int]:
    loaded.begin_epoch(epoch, alone=alone)
    return [row for examples in loaded.read() for row in examples.ids[0].tolist()]


@pytest.mark.parametrize("load", [loader_of, shuffled], ids=["in its order", "shuffled"])
def test_an_epoch_has_one_order_in_every_process(load: Callable[[], LoaderData]) -> None:
    """A reader that began with a later epoch, after a loss, served the order of the first one."""
    orders = [order_of(loaded, epoch, alone=True) for loaded in [load()] for epoch in range(3)]
    assert [order_of(load(), epoch, alone=False) for epoch in range(3)] == orders
    assert all(sorted(order) == [*range(8)] for order in orders)
    assert len({*map(tuple, orders)}) == (3 if load is shuffled else 1)


def test_the_seed_of_a_shuffled_loader_is_part_of_its_data() -> None:
    assert shuffled().to_fields() == {"format": "loader", "batch": 3, "columns": 1, "seed": 3}
    assert shuffled(4).to_fields() != shuffled().to_fields()
    assert "seed" not in loader_of().to_fields()


@pytest.mark.parametrize(
    ("loader", "source"),
    [
        (DataLoader(EXAMPLES, shuffle=True), "RandomSampler"),
        (DataLoader(EXAMPLES, sampler=WeightedRandomSampler([1.0] * 8, 8)), "WeightedRandomSamp"),
        (DataLoader(EXAMPLES, batch_sampler=({*range(8)},)), None),
        (DataLoader(EXAMPLES, batch_sampler=zip(range(8), strict=True)), "zip"),
        (DataLoader(Endless(), batch_size=2), "Endless"),
        (DataLoader(Endless(), batch_size=None), "Endless"),
        (DataLoader(Reshuffled(), batch_size=2), None),
        (DataLoader(EXAMPLES, batch_size=None), None),
        ([(DENSE, IDS)], None),
        (map(len, [IDS]), "map"),
    ],
)
def test_an_order_that_need_not_come_again_is_refused_where_it_has_to(
    loader: Any, source: str | None
) -> None:
    """Processes that shuffled otherwise served some examples twice, and some never."""

    def data_of() -> LoaderData:
        return LoaderData(loader, batch=8, columns=1)

    alone = data_of()
    for epoch in range(2):
        alone.begin_epoch(epoch, alone=True)
    for shared in (
        lambda: data_of().begin_epoch(0, alone=False),
        lambda: data_of().begin_epoch(1, alone=True),
        lambda: alone.begin_epoch(1, alone=True),
        data_of().check_order,
    ):
        if source is None:
            shared()
            continue
        with pytest.raises(EmbeddingError, match=f"that of a {source}.* need one order. Shuffle"):
            shared()


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize(
    ("dataset", "options", "follows"),
    [
        (EXAMPLES, {"shuffle": True, "generator": seeded()}, False),
        (Reshuffled(), {}, False),
        (EXAMPLES, {"sampler": RandomSampler(EXAMPLES, generator=seeded())}, True),
        (EXAMPLES, {"sampler": DistributedSampler(EXAMPLES, num_replicas=1, rank=0)}, True),
        (EXAMPLES, {}, True),
    ],
)
def test_workers_that_persist_are_refused_where_the_order_follows_from_earlier_epochs(
    dataset: Any, options: dict[str, Any], follows: bool
) -> None:
    """A reader that began with a later epoch had another order: examples came twice, or never."""
    loader = DataLoader(dataset, 3, num_workers=1, persistent_workers=True, **options)
    loaded = LoaderData(loader, batch=3, columns=1)
    loaded.begin_epoch(0, alone=True)
    if follows:
        loaded.check_order()
        return
    with pytest.raises(EmbeddingError, match="need one order. Make it with persistent_workers=Fal"):
        loaded.check_order()


def test_the_loaders_sampler_learns_the_epoch() -> None:
    sampler = DistributedSampler(EXAMPLES, num_replicas=1, rank=0)
    loader_of(sampler=sampler).begin_epoch(5, alone=False)
    assert sampler.epoch == 5
    dataset = Reshuffled()
    loader = DataLoader(dataset, batch_size=2)
    LoaderData(loader, batch=2, columns=1).begin_epoch(7, alone=False)
    assert dataset.epoch == 7


def test_processes_that_read_a_loader_at_once_need_one_order() -> None:
    """Each trainer evaluated its share of every batch in an order of its own."""
    examples = TensorDataset(torch.zeros(4, 1), torch.zeros(4, 1, dtype=torch.int64))
    for loader in (
        DataLoader(examples),
        DataLoader(examples, sampler=DistributedSampler(examples, num_replicas=1, rank=0)),
        iter(()),
    ):
        LoaderData(loader, batch=1, columns=1).share_order(0)
    for loader in (
        DataLoader(examples, shuffle=True),
        DataLoader(examples, sampler=WeightedRandomSampler([1.0] * 4, 4)),
    ):
        with pytest.raises(EmbeddingError, match="Sampler without a generator, another one at"):
            LoaderData(loader, batch=1, columns=1).share_order(0)


def test_processes_that_read_a_loader_at_once_share_the_seed_of_its_generator() -> None:
    """A generator that each trainer had seeded by its rank gave each an order of its own."""

    def order(loaded: LoaderData) -> list[int]:
        loaded.share_order(11)
        return [row for examples in loaded.read() for row in examples.ids[0].tolist()]

    weighted = WeightedRandomSampler([1.0] * 8, 8, generator=torch.Generator().manual_seed(4))
    assert order(shuffled(0)) == order(shuffled(1)) != [*range(8)]
    assert order(loader_of(sampler=weighted)) == order(loader_of(sampler=weighted))


def test_a_generator_is_read_once() -> None:
    """A second read lacked the batches of the first: one batch, or a whole later epoch."""
    batches = [(np.zeros((2, 1)), np.zeros((2, 3), np.int64))] * 2
    data = LoaderData(iter(batches), batch=2, columns=3)
    assert len(list(data.read())) == 2
    for read in (lambda: list(data.read()), lambda: data.first(1)):
        with pytest.raises(EmbeddingError, match="list_iterator, whose batches can be read once"):
            read()
