"""Columns of ids by embedding table, as a run of the model shows them."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from headrace.embeddings import EmbeddingError
from headrace.embeddings.run.model.columns import LookupsObserved, table_columns
from headrace.embeddings.run.model.modules import embedding_modules

IDS = torch.zeros(3, 4, dtype=torch.int64)


class Model(nn.Module):
    def __init__(self, ids_of: str = "plain") -> None:
        super().__init__()
        self.ids_of = ids_of
        self.user = nn.Embedding(100, 8, device="meta")
        self.item = nn.EmbeddingBag(100, 8, mode="sum", device="meta")
        self.dropout = nn.Dropout()
        self.top = nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        if self.ids_of == "modulo":
            ids = ids % 50
        if self.ids_of == "float":
            ids = ids.float()
        if self.ids_of == "mask":
            return self.top(self.user(ids[:, [0, 2]]) * (ids[:, [0, 2]] != 0)[..., None])
        if self.ids_of == "joined":
            return self.top(self.user(ids[:, 0]) + torch.cat([torch.zeros(3, 4), ids], dim=1))
        if self.ids_of == "one hot":
            return self.top(nn.functional.one_hot(ids[:, 0], 8).float())
        if self.ids_of == "shape":
            zeros = torch.zeros_like(ids, dtype=torch.float32) + ids.new_zeros(4).float()
            zeros = zeros + torch.zeros(1).expand_as(ids).reshape_as(ids).view_as(ids)
            ids = ids + zeros.long()
            ids = ids * (torch.ones_like(ids, dtype=torch.bool) == (torch.zeros_like(ids) == 0))
        if self.ids_of in ("int32", "modulo of int32"):
            ids = ids.int()
        if self.ids_of == "modulo of int32":
            ids = ids % 64
        if self.ids_of == "scores":
            return self.user(ids[:, 0]) @ self.item.weight.T
        if self.ids_of == "function":
            return self.top(nn.functional.embedding(ids[:, 0], torch.zeros(100, 8)))
        part = ids[:2] if self.ids_of == "part" else ids
        user = self.user(torch.stack([part[:, 2], part[:, 0]]).t().contiguous()).sum(1)
        if self.ids_of == "unused":
            return self.top(user)
        items = ids[:, 1:4:2] if self.ids_of != "column" else ids[:, 1:2]
        return self.top(user.sum() + self.dropout(self.item(items.reshape(len(ids), -1))))


def columns(model: Model) -> list[tuple[int, ...]]:
    return table_columns(model, embedding_modules(model), IDS, model)


def test_columns_are_those_whose_ids_a_module_gets() -> None:
    model = Model()
    model.user.eval()
    state = torch.get_rng_state()
    assert columns(model) == [(0, 2), (1, 3)]
    assert model.training
    assert not model.user.training
    assert torch.equal(torch.get_rng_state(), state)
    assert "forward" not in vars(model.user)


def test_what_has_the_shape_of_ids_may_be_compared() -> None:
    assert columns(Model("shape")) == [(0, 2), (1, 3)]


def test_a_module_may_get_ids_of_32_bits() -> None:
    """The numbers that stand for them had more: "ids that forward computes"."""
    assert columns(Model("int32")) == [(0, 2), (1, 3)]


class Counting(Model):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, ids: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        self.mean = self.mean + 1
        self.last = ids
        return super().forward(ids)


def test_the_run_leaves_buffers_and_attributes_as_they_were() -> None:
    """A model that counts its steps began with 1."""
    model = Counting()
    buffers = dict(model.named_buffers())
    columns(model)
    assert (model.calls, float(model.seen), float(model.mean)) == (0, 0, 0)
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert not hasattr(model, "last")


def test_a_model_on_a_device_gets_rows_there() -> None:
    """They were on the CPU: fit ran no model on a GPU, unless ids were given."""
    with FakeTensorMode():
        model = nn.ModuleDict({"table": nn.Embedding(9, 2), "top": nn.Linear(2, 1, device="cuda")})
        table = embedding_modules(model)
        with LookupsObserved(table, lambda *_: None), torch.no_grad():
            ids = torch.zeros(4, dtype=torch.int64, device="cuda")
            assert model["top"](model["table"](ids)).device.type == "cuda"


def test_a_compiled_model_shows_them_without_being_compiled() -> None:
    """Each table was traced anew, which took minutes for 26."""
    compiled: list[object] = []
    model = Model()
    called = torch.compile(model, backend=lambda graph, _: compiled.append(graph) or graph)
    assert table_columns(model, embedding_modules(model), IDS, called) == [(0, 2), (1, 3)]
    assert not compiled


@pytest.mark.parametrize(
    ("ids_of", "message"),
    [
        ("modulo", "user gets ids that forward computes"),
        ("mask", r"forward compares ids \(ne\), as for a mask"),
        ("modulo of int32", "user gets ids that forward computes"),
        ("function", r"forward uses ids as indices elsewhere .*\(index out of range in self\)"),
        ("scores", "forward computes with all rows of item, as for a softmax over items, and a b"),
        ("float", r"forward computes with ids \(float\)"),
        ("joined", r"forward computes with ids \(cat\)"),
        ("one hot", r"forward uses ids as indices elsewhere .*\(Class values must be smaller"),
        ("part", "user looks up the ids of some examples"),
        ("unused", r"item looks up nothing in evaluation mode, .* or give its columns as ids="),
        ("column", r"looks up the ids of column 3 in evaluation mode, .* the columns as ids="),
    ],
)
def test_ids_that_are_not_a_batchs_columns_are_refused(ids_of: str, message: str) -> None:
    model = Model(ids_of)
    with pytest.raises(EmbeddingError, match=message):
        columns(model)


class Scaled(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input) * self.embedding_dim**0.5


class Remainder(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input % self.num_embeddings)


def test_a_module_may_change_the_rows_that_it_looks_up_but_not_their_ids() -> None:
    """A subclass whose `forward` took a remainder learned rows of other ids than it looked up."""
    model = Model()
    model.user = Scaled(100, 8, device="meta")
    assert columns(model) == [(0, 2), (1, 3)]
    model.user = Remainder(100, 8, device="meta")
    with pytest.raises(EmbeddingError, match="user gets ids that forward computes"):
        columns(model)


@pytest.mark.parametrize("by_function", [True, False])
def test_rows_are_looked_up_by_calls_of_their_module(by_function: bool) -> None:
    """Without them a batch's numbers stood for rows: an IndexError, or wrong rows."""

    class Functional(Model):
        def forward(self, ids: Tensor) -> Tensor:
            users = ids[:, 1]
            if by_function:
                return nn.functional.embedding(users, self.user.weight) + self.item(ids[:, [0, 2]])
            return self.user.forward(users) + self.item(ids[:, [0, 2]])

    model = Functional()
    with pytest.raises(EmbeddingError, match="forward looks up rows of user without a call of the"):
        table_columns(model, embedding_modules(model), IDS[:, :3], model)


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(9, 8, mode="sum", include_last_offset=True)
        self.top = nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        ends = torch.arange(0, ids.numel() + 1, ids.shape[1])
        weights = torch.ones(ids.numel())
        bags = self.bag(ids.flatten(), ends, per_sample_weights=weights)
        return self.top(bags + torch.zeros(len(ids), 8))


def test_bags_by_offsets_have_as_many_as_there_are_examples() -> None:
    model = Bags()
    own = model.bag.forward
    model.bag.forward = own  # as libraries do that wrap it
    assert table_columns(model, embedding_modules(model), IDS, model) == [(0, 1, 2, 3)]
    assert vars(model.bag)["forward"] is own


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Embedding(10, 4, max_norm=1.0), "0 has max_norm"),
        (nn.Embedding(10, 4, scale_grad_by_freq=True), "0 has scale_grad_by_freq"),
        (nn.EmbeddingBag(10, 4, mode="max"), "0 has mode='max'"),
        (nn.Embedding.from_pretrained(torch.zeros(10, 4)), "requires_grad=False.* with lr=0"),
        (nn.Embedding(10, 4, dtype=torch.float16), "rows of torch.float16"),
        (nn.Linear(2, 2), "no nn.Embedding and no nn.EmbeddingBag"),
    ],
)
def test_modules_that_are_not_served_are_refused_by_name(module: nn.Module, message: str) -> None:
    with pytest.raises(EmbeddingError, match=message):
        embedding_modules(nn.Sequential(module))


def tied(*, to_table: bool) -> nn.ModuleDict:
    """Return a model of a layer, or another table, with the weight of a table."""
    model = nn.ModuleDict({"goods": nn.Embedding(10, 4)})
    model["scores"] = nn.Embedding(10, 4) if to_table else nn.Linear(4, 10, bias=False)
    model["scores"].weight = model["goods"].weight
    return model


def test_a_weight_is_that_of_one_module() -> None:
    """A layer's was in no optimizer any more: scores of items had the rows of the beginning."""
    with pytest.raises(EmbeddingError, match=r"goods and scores\.weight share a weight, .* rows a"):
        embedding_modules(tied(to_table=False))
    with pytest.raises(EmbeddingError, match="scores and goods share a weight: let one module l"):
        embedding_modules(tied(to_table=True))
    model = nn.ModuleDict({"goods": nn.Embedding(10, 4)})
    model["again"] = model["goods"]
    assert [embedding.name for embedding in embedding_modules(model)] == ["goods"]


def test_a_module_looks_up_in_the_rows_of_a_batch() -> None:
    model = nn.Sequential(nn.Embedding(1000, 4, sparse=True))
    (embedding,) = embedding_modules(model)
    weight = embedding.take_weight()
    assert weight.shape == (1000, 4)
    assert not list(model.parameters())
    rows = torch.arange(8.0).reshape(2, 4).requires_grad_()
    embedding.set_rows(rows)
    model(torch.tensor([1, 1, 0])).sum().backward()
    assert rows.grad is not None
    assert rows.grad[:, 0].tolist() == [1.0, 2.0]
