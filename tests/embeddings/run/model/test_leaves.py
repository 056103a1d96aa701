"""Numbers that stand for a batch's ids, and the rows that modules look up by them."""

import copy
import io

import pytest
import torch
from torch import nn

from headrace.embeddings import EmbeddingError
from headrace.embeddings.run.model import leaves as leaves_module
from headrace.embeddings.run.model.leaves import Leaves, ModuleRows
from headrace.embeddings.run.model.modules import EmbeddingModule


def modules(*dims: int) -> list[EmbeddingModule]:
    return [
        EmbeddingModule(name=f"table {number}", module=nn.EmbeddingBag(50, dim, mode="sum"))
        for number, dim in enumerate(dims)
    ]


def rows(count: int, dim: int, first: float) -> torch.Tensor:
    return torch.arange(first, first + count).float()[:, None].expand(count, dim).contiguous()


def test_columns_of_bags_may_lie_between_those_of_a_table() -> None:
    several, bag = modules(1, 1)
    leaves = Leaves([several, bag], [(0, 2), (1,)], [False, True, False], registered=False)
    first, bags, last = leaves.set(
        [
            ModuleRows(rows=rows(3, 1, 10), ids=torch.tensor([0, 1, 2, 0])),
            ModuleRows(
                rows=rows(2, 1, 20), ids=torch.tensor([1, 0, 1]), lengths=torch.tensor([0, 3])
            ),
        ],
        examples=2,
    )
    assert isinstance(first, torch.Tensor)
    assert isinstance(last, torch.Tensor)
    pairs = several.module(torch.stack([first, last], dim=1))
    assert pairs.flatten().tolist() == [10 + 11, 12 + 10]
    assert bag.module(*bags).flatten().tolist() == [0, 21 + 20 + 21]
    leaves.clear()
    assert len(bag.module.weight) == 0


def test_a_share_may_have_no_examples() -> None:
    """A table of several columns had no rows to put into their order."""
    (several,) = modules(4)
    leaves = Leaves([several], [(0, 1)], [False, False], registered=False)
    empty = ModuleRows(rows=torch.zeros(0, 4), ids=torch.zeros(0, dtype=torch.int64))
    ids = leaves.set([empty], examples=0)
    assert isinstance(ids, torch.Tensor)
    assert ids.shape == (0, 2)
    assert several.module(ids).shape == (0, 4)


def test_ids_of_another_batch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were looked up in the rows of the newest one: a loop that read ahead evaluated those."""
    monkeypatch.setattr(leaves_module, "_MOST_NUMBERS", 12)
    several, bag = modules(1, 1)
    leaves = Leaves([several, bag], [(0, 2), (1,)], [False, True, False], registered=False)
    batches = [
        leaves.set(
            [
                ModuleRows(rows=rows(2, 1, 10), ids=torch.tensor([0, 1])),
                ModuleRows(
                    rows=rows(2, 1, 20), ids=torch.tensor([1, 0, 1]), lengths=torch.tensor([3])
                ),
            ],
            examples=1,
        )
        for _ in range(3)  # the third has the numbers of the first
    ]
    for first, bags, last in (batches[0], batches[2]):
        assert several.module(torch.stack([first, last], dim=1)).flatten().tolist() == [21]
        assert bag.module(*bags).flatten().tolist() == [62]
    first, bags, last = batches[1]
    with pytest.raises(EmbeddingError, match=r"table 1 .* or those of an earlier batch: "):
        bag.module(*bags)
    with pytest.raises(EmbeddingError, match=r"table 0 .* or those of an earlier batch: "):
        several.module(torch.stack([first, last], dim=1))


def test_tables_may_share_a_column_in_part() -> None:
    one, both = modules(1, 2)
    leaves = Leaves([one, both], [(1,), (0, 1)], [False, False], registered=False)
    ids = leaves.set(
        [
            ModuleRows(rows=rows(2, 1, 5), ids=torch.tensor([1, 0, 0])),
            ModuleRows(rows=rows(4, 2, 30), ids=torch.tensor([3, 2, 1, 2, 0, 0])),
        ],
        examples=3,
    )
    assert isinstance(ids, torch.Tensor)
    assert one.module(ids[:, 1:]).flatten().tolist() == [6, 5, 5]
    assert both.module(ids)[:, 0].tolist() == [33 + 32, 31 + 32, 30 + 30]


def test_a_column_between_those_of_a_module_is_refused_by_name() -> None:
    """It was looked up in row -1: torch's IndexError, which names no module."""
    several, one = modules(1, 1)
    leaves = Leaves([several, one], [(0, 2), (1,)], [False] * 3, registered=False)
    pairs = ModuleRows(rows=rows(2, 1, 5), ids=torch.tensor([1, 0, 0, 1]))
    ids = leaves.set([pairs, ModuleRows(rows=rows(1, 1, 0), ids=torch.tensor([0, 0]))], examples=2)
    assert isinstance(ids, torch.Tensor)
    assert several.module(ids[:, ::2]).flatten().tolist() == [5 + 6] * 2
    with pytest.raises(EmbeddingError, match="table 0 gets ids of other columns than it had"):
        several.module(ids[:, :2])


@pytest.mark.parametrize("in_a_batch", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_state_may_lack_the_rows_of_a_batch_and_no_other_weight(
    in_a_batch: bool, wrapped: bool
) -> None:
    """Any key that ends in "weight" could be absent, whichever module's it was."""
    table = EmbeddingModule(name="table", module=nn.EmbeddingBag(50, 2, mode="sum"))
    model = nn.ModuleDict(
        {"bottom": nn.Linear(3, 2), "table": table.module, "top": nn.Linear(2, 1)}
    )
    whole = nn.ModuleDict({"module": model}) if wrapped else model
    table.take_weight()
    leaves = Leaves([table], [(0,)], [False], registered=True)
    if in_a_batch:
        leaf = nn.Parameter(rows(1, 2, 0))
        leaves.set([ModuleRows(rows=leaf, ids=torch.tensor([0]))], examples=1)
        assert "table.weight" in dict(model.named_parameters())
    state = whole.state_dict()
    assert not any(name.endswith("table.weight") for name in state)
    whole.load_state_dict(state)
    for name in state:
        with pytest.raises(RuntimeError, match=rf'Missing key.*"{name}"'):
            whole.load_state_dict({key: state[key] for key in state if key != name})


@pytest.mark.parametrize("registered", [False, True])
def test_a_model_is_pickled_without_rows(registered: bool) -> None:
    """With one trainer `torch.save(model)` ended in an AttributeError about a local object."""
    (embedding,) = modules(2)
    embedding.take_weight()
    model = nn.ModuleDict({"table": embedding.module, "top": nn.Linear(2, 1)})
    leaves = Leaves([embedding], [(0,)], [False], registered=registered)
    leaves.set([ModuleRows(rows=rows(3, 2, 10), ids=torch.tensor([0, 1, 2]))], examples=3)
    leaves.clear()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.state_dict().keys() == {"top.weight", "top.bias"}
    with pytest.raises(EmbeddingError, match="table 0 is used outside of a batch"):
        loaded["table"](torch.zeros(1, 1, dtype=torch.int64))


@pytest.mark.parametrize("registered", [False, True])
def test_a_copy_of_a_model_looks_up_in_the_rows_of_a_batch(registered: bool) -> None:
    """One of averaged weights had no batches: it could be trained, and never evaluated."""
    (embedding,) = modules(1)
    embedding.take_weight()
    model = nn.ModuleDict({"table": embedding.module, "top": nn.Linear(1, 1)})
    leaves = Leaves([embedding], [(0,)], [False], registered=registered)
    averaged = copy.deepcopy(model)
    for first in (10, 20):
        leaf = nn.Parameter(rows(3, 1, first))
        ids = leaves.set([ModuleRows(rows=leaf, ids=torch.tensor([2, 0]))], examples=2)
        assert averaged["table"](ids).flatten().tolist() == [first + 2, first]
        assert dict(averaged.named_parameters()).keys() == {"top.weight", "top.bias"}
    leaves.clear()
    with pytest.raises(EmbeddingError, match="table 0 is used outside of a batch"):
        averaged["table"](ids)
