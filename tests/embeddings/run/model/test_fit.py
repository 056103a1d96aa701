"""A model that fit trains ends with the parameters and rows of torch's own training."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

from headrace.embeddings import EmbeddingError, InitialValues, fit
from headrace.embeddings.run.cacher.cacher import CacherOptions, IdBatch, dispatched
from headrace.embeddings.run.model import fit as fit_module
from headrace.embeddings.run.model.fit import (
    _averaged,  # pyright: ignore[reportPrivateUsage]
    _device,  # pyright: ignore[reportPrivateUsage]
    embedding_tables,
    fit_connected,
)
from headrace.embeddings.run.model.modules import embedding_modules
from headrace.embeddings.run.trainers.committer import Committer
from headrace.embeddings.run.trainers.dense import DenseGradients
from headrace.embeddings.tables import table_groups
from headrace.errors import CommunicationError, InputError
from headrace.executor import Executor
from tests.embeddings.run.in_process import InProcessJob, ListData
from tests.embeddings.run.memory_servers import Connection
from tests.embeddings.run.model.fits import (
    BAGS,
    DATA,
    OPTIMIZERS,
    CommittingJob,
    Optimizers,
    fitted_model,
    sparse_and_dense,
    tables_of,
)
from tests.embeddings.run.models import (
    DLRM,
    MODELS,
    ROWS,
    Bags,
    History,
    gradients_of_used_rows,
    loss_of,
    steps,
    torch_batches,
)


def reference(
    model: nn.Module, optimizers: Optimizers, epochs: int, decay: float, data: ListData
) -> tuple[dict[str, Tensor], list[float]]:
    torch_optimizers = optimizers(model)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, decay) for each in torch_optimizers]
    losses: list[float] = []
    with gradients_of_used_rows(model) as convert:
        for _ in range(epochs):
            batches = torch_batches(data.batches)
            losses += steps(
                model, batches, torch_optimizers, convert, lambda: [s.step() for s in schedules]
            )
    return {name: weight.detach() for name, weight in model.named_parameters()}, losses


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own, in its Adagrad
@pytest.mark.parametrize(
    ("name", "optimizers"),
    [
        *(("dlrm", optimizers) for optimizers in OPTIMIZERS),
        *((name, "sparse adam") for name in MODELS if name != "dlrm"),
    ],
)
def test_one_trainer_trains_as_torch_does_bit_for_bit(
    executor: Executor, name: str, optimizers: str
) -> None:
    torch.manual_seed(1)
    model = MODELS[name]()
    expected, losses = reference(copy.deepcopy(model), OPTIMIZERS[optimizers], 2, 0.9, DATA)
    torch_optimizers = OPTIMIZERS[optimizers](model)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in torch_optimizers]
    job = InProcessJob(DATA)
    model, batches = fit_connected(
        model, DATA, optimizer=torch_optimizers, connect=job.connect(executor)
    )
    fitted: list[float] = []
    for _ in range(2):
        fitted += steps(
            model, batches, torch_optimizers, after_step=lambda: [s.step() for s in schedules]
        )
    batches.close()
    assert fitted == losses
    parameters = tables_of(job, model)
    assert parameters.keys() == expected.keys()
    for parameter, values in expected.items():
        assert torch.equal(parameters[parameter], values), parameter


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(
    ("kind", "optimizers"), [(Bags, "adagrad"), (Bags, "sparse adam"), (History, "adagrad")]
)
def test_bags_padding_and_weights_are_those_of_torch(
    executor: Executor, kind: Callable[[], nn.Module], optimizers: str
) -> None:
    torch.manual_seed(1)
    model = kind()
    whole = copy.deepcopy(model)
    expected, losses = reference(whole, OPTIMIZERS[optimizers], 2, 1.0, BAGS)
    own = OPTIMIZERS[optimizers](model)
    job = InProcessJob(BAGS)
    fitted, batches = fit_connected(model, BAGS, optimizer=own, connect=job.connect(executor))
    with batches:
        assert steps(fitted, batches, own) + steps(fitted, batches, own) == losses
        for batch, plain in zip(batches.evaluate(BAGS), torch_batches(BAGS.batches), strict=True):
            assert torch.equal(loss_of(fitted, batch), loss_of(whole, plain))
    parameters = tables_of(job, model)
    for parameter, values in expected.items():
        assert torch.equal(parameters[parameter], values), parameter


def test_padding_of_a_weight_without_values_is_zeros(executor: Executor) -> None:
    _, batches, _, _ = fitted_model(executor, Bags(device="meta"), BAGS)
    with batches:
        weights = batches.weights()
    assert not weights["one.weight"][1].any()
    assert weights["one.weight"][0].all()


def test_rows_of_a_weight_without_values_begin_at_the_servers(executor: Executor) -> None:
    fitted, batches, _, job = fitted_model(executor, DLRM(device="meta"))
    with batches:
        (batch, *_) = batches.evaluate(DATA)
        assert len(batch[1]) == 16
        assert job.servers is not None
        assert job.servers.rows == {}
        assert sum(1 for _ in fitted.parameters()) == 6


@pytest.mark.parametrize("failing", ["load", "any_trainer", "restore"])
def test_a_fit_that_fails_leaves_model_and_optimizer_as_they_were(
    executor: Executor, tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights were gone with the connection to the servers."""
    model = DLRM()
    model.tables[0] = nn.EmbeddingBag(ROWS[0], 4, mode="sum", padding_idx=1, sparse=True)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    model_before = copy.deepcopy(model.state_dict())
    weights, groups = [*model.parameters()], [[*g["params"]] for g in optimizer.param_groups]
    optimizer_before = copy.deepcopy(optimizer.state_dict())
    places = {"load": Connection, "any_trainer": fit_module, "restore": Committer}

    def fail(*_: object, **__: object) -> None:
        raise CommunicationError("server 0 is gone")

    with monkeypatch.context() as patched:
        patched.setattr(places[failing], failing, fail)
        job = CommittingJob(tmp_path / "state")
        with pytest.raises(CommunicationError, match="server 0 is gone"):
            fit_connected(model, DATA, optimizer=optimizer, connect=job.connect(executor))
    assert job.closed == 1
    assert all(now is weight for now, weight in zip(model.parameters(), weights, strict=True))
    assert all(torch.equal(model.state_dict()[name], model_before[name]) for name in model_before)
    assert [[*map(id, g["params"])] for g in optimizer.param_groups] == [
        [*map(id, group)] for group in groups
    ]
    assert optimizer.state_dict()["state"].keys() == optimizer_before["state"].keys()
    assert (model.tables[0].padding_idx, model.tables[0].sparse) == (1, True)
    again = InProcessJob(DATA)
    model, batches = fit_connected(
        model, DATA, optimizer=optimizer, connect=again.connect(executor)
    )
    with batches:
        assert len(steps(model, batches, [optimizer])) == len(DATA.batches)


def test_hooks_that_are_not_called_are_named(executor: Executor) -> None:
    """Those of `wandb.watch` showed the dense part alone, and nothing said so."""
    model = DLRM()

    def watch(gradient: Tensor) -> None:
        del gradient

    def step_at_once(weight: Tensor) -> None:
        del weight

    for table in model.tables[1:]:
        table.weight.register_hook(watch)
    model.tables[0].weight.register_post_accumulate_grad_hook(step_at_once)
    model.top.weight.register_hook(watch)
    with pytest.warns(UserWarning, match="is not called any more") as warned:
        _, batches, _, _ = fitted_model(executor, model)
    batches.close()
    texts = sorted(str(warning.message).partition("<locals>.")[2] for warning in warned)
    assert len(texts) == 2
    assert texts[0].startswith("step_at_once, a hook on the gradient of tables.0.weight, is not c")
    assert texts[1].startswith("watch, a hook on the gradient of tables.1.weight, is not called")


def test_data_of_another_form_are_refused_with_the_form_that_serves() -> None:
    model = DLRM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.zeros(4, 3)))
    for data, message in (
        (loader, r"^data is a DataLoader: pass LoaderData\(loader, "),
        ([Path("clicks.tsv")], "^data is a list: needs CriteoData, "),
    ):
        with pytest.raises(EmbeddingError, match=message):
            fit(model, cast("ListData", data), optimizer=optimizer)
    assert model.tables[0].weight is not None


@pytest.mark.parametrize("batch_count", [0, 2, len(DATA.batches)])
def test_a_model_that_was_fitted_before_is_refused_as_that(
    executor: Executor, batch_count: int
) -> None:
    """After an epoch its tables had "requires_grad=False", within one "ids of other columns"."""
    fitted, batches, optimizer, _ = fitted_model(executor)
    epoch = iter(batches)
    for _ in range(batch_count):
        steps(fitted, [next(epoch)], [optimizer])
    batches.close()
    columns = {f"tables.{table}": [table] for table in range(len(ROWS))}
    for ids in (None, columns):
        with pytest.raises(EmbeddingError, match=r"tables\.0 is no parameter of 20 rows, as in a"):
            fitted_model(executor, fitted, ids=ids)


@pytest.mark.parametrize("columns", [0, [], [99], "0"])
def test_ids_that_are_no_list_of_columns_are_refused(executor: Executor, columns: Any) -> None:
    ids = {f"tables.{table}": [table] for table in range(len(ROWS))} | {"tables.0": columns}
    with pytest.raises(
        EmbeddingError, match=r"ids of tables\.0 are .*, needs a list of columns from"
    ):
        fitted_model(executor, ids=ids)


class Computed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 4)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        return self.table(ids + 1).sum((1, 2))


def no_weights(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(sparse_and_dense(model)[1], lr=0.1)]


def one_for_each_table(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD([weight], lr=0.1) for weight in model.parameters()]


@pytest.mark.parametrize(
    ("model", "optimizers", "options", "message"),
    [
        (
            DLRM,
            lambda m: torch.optim.Adam(m.parameters()),
            {},
            r"embedding rows is Adam, .* optimizer=\[sparse_adam, adam\]",
        ),
        (
            DLRM,
            lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.5),
            {},
            r"SGD has weight_decay 0\.5 for embedding rows",
        ),
        (DLRM, no_weights, {}, r"tables\.0 is in no optimizer that fit got"),
        (DLRM, one_for_each_table, {}, r"tables\.0 and tables\.1 are in two optimizers"),
        (DLRM, OPTIMIZERS["sgd"], {"cache": 40}, "a cache of 40 B has no room .* at least 48 B"),
        (DLRM, OPTIMIZERS["sgd"], {"cache": "many"}, "cache is 'many', needs a number"),
        (DLRM, OPTIMIZERS["sgd"], {"cache": 1e9}, r"cache is 1000000000\.0, needs bytes, an int"),
        (
            lambda: nn.utils.parametrizations.weight_norm(nn.EmbeddingBag(20, 4)),
            OPTIMIZERS["sgd"],
            {},
            r"EmbeddingBag is computed of parametrizations\.weight\.original0, as by weight_norm",
        ),
        (
            lambda: nn.Sequential(prune.identity(nn.Embedding(20, 4), "weight")),
            OPTIMIZERS["sgd"],
            {},
            "the weight of 0 is computed of weight_orig, as by weight_norm, which is not served",
        ),
        (DLRM, OPTIMIZERS["sgd"], {"ids": {"one": [0]}}, r"ids are of one, needs the modules ta"),
        (
            Computed,
            OPTIMIZERS["sgd"],
            {"ids": {"table": [3]}},
            r"are \[3\], needs a list of columns ",
        ),
        (Computed, OPTIMIZERS["sgd"], {}, "table gets ids that forward computes"),
        (
            DLRM,
            OPTIMIZERS["sgd"],
            {"initial": {"top": InitialValues()}},
            "initial values are of top, which is no embedding module",
        ),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    executor: Executor,
    model: Callable[[], nn.Module],
    optimizers: Callable[[nn.Module], Any],
    options: dict[str, Any],
    message: str,
) -> None:
    made = model()
    before = {name: weight.clone() for name, weight in made.named_parameters()}
    with pytest.raises((EmbeddingError, InputError), match=message):
        fit_connected(
            made,
            DATA,
            optimizer=optimizers(made),
            connect=InProcessJob(DATA).connect(executor),
            **options,
        )
    after = dict(made.named_parameters())  # the model is as it was
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("rows", [1 << 27, (1 << 27) + 1, 1 << 34])
def test_a_large_table_s_ids_are_below_its_rows(rows: int) -> None:
    """Of more than 2^27 rows any id was trained; torch raises IndexError."""
    model = nn.Sequential(nn.Embedding(rows, 4, device="meta"))
    tables = embedding_tables(embedding_modules(model), None)
    assert [(table.rows, table.initial_scale) for table in tables] == [(rows, rows**-0.5)]
    options = CacherOptions(
        tables=tables, groups=table_groups(tables), slots=(100,), trainers=1, lookahead=1
    )
    for wrong in (rows, rows + 5):
        batch = IdBatch(examples=2, fields={}, ids=(np.array([1, wrong]),), lengths=(None,))
        with pytest.raises(EmbeddingError, match=f"id {wrong}, needs 0 to {rows - 1}"):
            list(dispatched([batch], options))
    last = IdBatch(examples=1, fields={}, ids=(np.array([rows - 1]),), lengths=(None,))
    ((part,),) = dispatched([last], options)
    assert part.groups[0].fetched.ids.tolist() == [rows - 1]


@pytest.mark.parametrize(
    ("table", "top", "device"),
    [
        ("cpu", "cuda", "cuda"),
        ("cuda", "cuda", "cuda"),
        ("meta", "cuda", "cuda"),
        ("cuda", None, "cuda"),
        ("meta", None, "cpu"),
    ],
)
def test_rows_are_on_the_device_of_the_dense_part(table: str, top: str | None, device: str) -> None:
    """Tables in the host's memory were refused beside it, and those of a device left it."""
    with FakeTensorMode():
        model = nn.ModuleDict({"table": nn.Embedding(5, 2, device=table)})
        if top is not None:
            model["top"] = nn.Linear(2, 1, device=top)
        assert _device(model, embedding_modules(model)).type == device
        model["other"] = nn.Linear(1, 1, device="cpu")
        if top is not None:
            with pytest.raises(
                EmbeddingError, match="the model is on cpu, cuda.* needs one device"
            ):
                _device(model, embedding_modules(model))


@pytest.mark.parametrize("find_unused_parameters", [False, True])
def test_a_step_may_leave_out_a_part_of_the_model(find_unused_parameters: bool) -> None:
    """Several trainers had torch's error, whose remedy is an option of what fit calls."""
    torch.distributed.init_process_group(
        "gloo",
        store=torch.distributed.HashStore(),  # pyright: ignore[reportPrivateImportUsage]
        rank=0,
        world_size=1,
    )
    try:
        model = nn.ModuleDict({"user": nn.Linear(2, 1), "item": nn.Linear(2, 1)})
        model.forward = lambda rows: model["user"](rows)
        fitted = _averaged(model, DenseGradients(), 0, 1, find_unused_parameters)
        fitted(torch.ones(3, 2)).sum().backward()
        unused = pytest.raises(RuntimeError, match="find_unused_parameters=True")
        with nullcontext() if find_unused_parameters else unused:
            fitted(torch.ones(3, 2)).sum().backward()
    finally:
        torch.distributed.destroy_process_group()


def test_a_dense_part_without_values_is_refused() -> None:
    """It was run beside examples on the CPU: torch's error of two devices."""
    with torch.device("meta"):
        model = DLRM()
    with pytest.raises(
        EmbeddingError, match=r'bottom\.0\.weight is on the device "meta", which is'
    ):
        _device(model, embedding_modules(model))
