"""A model that fit trains ends with the parameters and rows of torch's own training."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader, TensorDataset

from headrace.embeddings import EmbeddingError, EmbeddingTable, InitialValues, LoaderData, fit
from headrace.embeddings.run.cacher.cacher import CacherOptions, IdBatch, dispatched
from headrace.embeddings.run.commits import CommitFolder, Mark
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.model import fit as fit_module
from headrace.embeddings.run.model.fit import (
    _device,  # pyright: ignore[reportPrivateUsage]
    embedding_tables,
    fit_connected,
)
from headrace.embeddings.run.model.fitted import FittedBatches
from headrace.embeddings.run.model.modules import embedding_modules
from headrace.embeddings.run.model.table_files import whole_table
from headrace.embeddings.run.trainers.committer import Committer
from headrace.embeddings.run.trainers.connections import JobCommits, TrainerServers
from headrace.embeddings.tables import table_groups
from headrace.errors import CommunicationError, ForkError, InputError
from headrace.executor import Executor
from tests.embeddings.run.in_process import InProcessJob, ListData, clicks, with_bags
from tests.embeddings.run.jobs import description
from tests.embeddings.run.memory_servers import Connection
from tests.embeddings.run.models import (
    DLRM,
    MODELS,
    ROWS,
    Bags,
    gradients_of_used_rows,
    loss_of,
    steps,
    torch_batches,
)
from tests.forked import status_of_child

DATA = clicks(ROWS, [16, 16, 16, 16, 16, 16, 16, 5])
Optimizers = Callable[[nn.Module], Sequence[torch.optim.Optimizer]]


def sparse_and_dense(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    names = {id(weight) for weight in tables}
    return tables, [weight for weight in model.parameters() if id(weight) not in names]


def sparse_adam_beside_adam(model: nn.Module) -> list[torch.optim.Optimizer]:
    tables, dense = sparse_and_dense(model)
    return [torch.optim.SparseAdam(tables, lr=0.05), torch.optim.Adam(dense, lr=0.01)]


def two_groups(model: nn.Module) -> list[torch.optim.Optimizer]:
    tables, dense = sparse_and_dense(model)
    groups = [{"params": tables[:1], "lr": 0.5}, {"params": [*tables[1:], *dense]}]
    return [torch.optim.SGD(groups, lr=0.1)]


OPTIMIZERS: dict[str, Optimizers] = {
    "sgd": lambda model: [torch.optim.SGD(model.parameters(), lr=0.3)],
    "adagrad": lambda model: [torch.optim.Adagrad(model.parameters(), lr=0.1, lr_decay=0.01)],
    "sparse adam": sparse_adam_beside_adam,
    "two groups": two_groups,
}


def tables_of(job: InProcessJob, model: nn.Module) -> dict[str, Tensor]:
    """Return a model's parameters, and its tables as they are at the servers."""
    assert job.description is not None
    assert job.servers is not None
    parameters = {name: weight.detach() for name, weight in model.named_parameters()}
    for number, table in enumerate(job.description.tables):
        ids, rows = job.servers.connection(0).export(number, -1, 1 << 30)
        assert ids.tolist() == [*range(table.rows)]
        parameters[f"{table.name}.weight"] = torch.from_numpy(rows[:, : table.dim])
    return parameters


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


POSITION = ("commit", "epoch", "epoch_began", "batch", "steps")
"""Fields of a mark."""


class CommittingJob(InProcessJob):
    """A job that makes commits in a folder.

    Attributes
    ----------
    positions : of the commits, in their order.
    """

    def __init__(self, folder: Path, commit_every: int = 0) -> None:
        self.positions: list[Mapping[str, int]] = []
        state = CommitFolder(folder)
        self.made = JobCommits(folder=state, start=state.begin(), mark=None, report=self._note)
        super().__init__(DATA, commit_every=commit_every, commits=self.made)

    def _note(self, fields: Mapping[str, Any]) -> None:
        self.positions.append({name: fields[name] for name in POSITION})


def test_a_commit_that_is_due_with_the_last_batch_is_that_of_the_epoch(
    executor: Executor, tmp_path: Path
) -> None:
    """A job that began from one of its own had an epoch without batches first."""
    model = DLRM()
    optimizers = OPTIMIZERS["sgd"](model)
    job = CommittingJob(tmp_path / "state", commit_every=4)
    model, batches = fit_connected(model, DATA, optimizer=optimizers, connect=job.connect(executor))
    for _ in range(2):
        steps(model, batches, optimizers)
    batches.close()
    positions = [tuple(position.values()) for position in job.positions]
    assert positions == [(0, 0, 0, 4, 4), (1, 1, 8, 8, 8), (2, 1, 8, 12, 12), (3, 2, 16, 16, 16)]
    assert job.servers is not None
    committed = job.servers.committed[-1]
    assert committed
    for name, row in committed.items():
        assert np.array_equal(job.servers.rows[name], row)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("commit_every", [0, 4])
def test_rows_that_are_loaded_after_an_epoch_are_in_its_commit(
    executor: Executor, tmp_path: Path, commit_every: int, is_whole: bool
) -> None:
    """It had the rows before them, and the dense part after them."""
    for table, rows in enumerate(ROWS):
        width = 4 if table < 2 or is_whole else 9  # else it fails behind two tables
        np.savez(
            tmp_path / f"tables.{table}.npz", id=np.arange(rows), row=np.full((rows, width), 0.5)
        )
    model = DLRM()
    optimizers = OPTIMIZERS["sgd"](model)
    job = CommittingJob(tmp_path / "state", commit_every=commit_every)
    model, batches = fit_connected(model, DATA, optimizer=optimizers, connect=job.connect(executor))
    steps(model, batches, optimizers)
    with pytest.raises(EmbeddingError, match="9 numbers") if not is_whole else nullcontext():
        batches.load(tmp_path)
    assert job.servers is not None
    loaded = {name: row.copy() for name, row in job.servers.rows.items()}
    assert all((loaded[table, row] == 0.5).all() for table in (0, 1) for row in range(ROWS[table]))
    epoch = iter(batches)
    next(epoch)
    position = job.positions[-1]
    assert (position["epoch"], position["batch"]) == (1, 8)
    committed = job.servers.committed[position["commit"] + 1]
    assert committed.keys() == loaded.keys()
    for name, row in loaded.items():
        assert np.array_equal(committed[name], row)
    batches.close()


def test_a_loader_that_shuffles_as_it_likes_makes_no_commits(
    executor: Executor, tmp_path: Path
) -> None:
    """A job that began from one went on with other examples than those that were left."""
    columns = (torch.cat(parts) for parts in zip(*torch_batches(DATA.batches), strict=True))
    loader = DataLoader(TensorDataset(*columns), batch_size=16, shuffle=True)
    data = LoaderData(loader, batch=16, columns=len(ROWS))
    model = DLRM()
    (optimizer,) = OPTIMIZERS["sgd"](model)
    job = CommittingJob(tmp_path / "state")
    with pytest.raises(EmbeddingError, match="the loader's order is that of a RandomSampler"):
        fit_connected(model, data, optimizer=optimizer, connect=job.connect(executor))
    assert "tables.0.weight" in dict(model.named_parameters())
    job = InProcessJob(DATA)
    _, batches = fit_connected(model, data, optimizer=optimizer, connect=job.connect(executor))
    batches.close()


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


def test_a_job_begins_from_no_commit_of_a_model_without_one_of_its_layers(
    executor: Executor, tmp_path: Path
) -> None:
    model = DLRM()
    job = CommittingJob(tmp_path / "state")
    optimizers = OPTIMIZERS["sgd"](model)
    model, batches = fit_connected(model, DATA, optimizer=optimizers, connect=job.connect(executor))
    with batches:
        steps(model, batches, optimizers)
    assert job.description is not None
    mark = Mark(
        start=job.made.start,
        trainers=1,
        servers=(),
        job=job.description,
        files=(),
        **job.positions[-1],
    )
    wider = DLRM()
    wider.bottom.append(nn.Linear(4, 4, bias=False))
    job = InProcessJob(DATA, commits=replace(job.made, mark=mark))
    optimizers = OPTIMIZERS["sgd"](wider)
    with pytest.raises(
        EmbeddingError, match=r'model is not that of the commit: .*\n.*"bottom\.3\.weight"'
    ):
        fit_connected(wider, DATA, optimizer=optimizers, connect=job.connect(executor))


@pytest.mark.parametrize("seed", [-1, 1 << 64, 1 << 127 | 7, -(1 << 80) - 1])
def test_a_commit_of_a_job_with_any_seed_can_be_read(tmp_path: Path, seed: int) -> None:
    """JSON is refused with numbers of more than 64 bits, of which rows begin by the lowest 64."""
    descriptions: list[JobDescription] = []

    def connect(description: JobDescription) -> NoReturn:
        descriptions.append(description)
        raise CommunicationError("there is no job")

    model = DLRM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CommunicationError, match="there is no job"):
        fit_connected(model, DATA, optimizer=optimizer, connect=connect, seed=seed)
    (job,) = descriptions
    assert job.seed % (1 << 64) == seed % (1 << 64)
    folder = CommitFolder(tmp_path)
    position = {"commit": 0, "epoch": 0, "epoch_began": 0, "batch": 1, "steps": 1}
    mark = Mark(start=folder.begin(), trainers=1, servers=(), job=job, files=(), **position)
    folder.write(mark)
    assert (read := folder.newest()) is not None
    assert read.job.seed == job.seed


BAGS = with_bags(clicks((*ROWS, 9), [16] * 7 + [5]), (0, 2))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("optimizers", ["adagrad", "sparse adam"])
def test_bags_padding_and_weights_are_those_of_torch(executor: Executor, optimizers: str) -> None:
    torch.manual_seed(1)
    model = Bags()
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


def fitted_model(
    executor: Executor, model: nn.Module | None = None, data: ListData = DATA, **options: Any
) -> tuple[nn.Module, FittedBatches, torch.optim.Optimizer, InProcessJob]:
    model = DLRM() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    job = InProcessJob(data)
    fitted, batches = fit_connected(
        model, data, optimizer=optimizer, connect=job.connect(executor), **options
    )
    return fitted, batches, optimizer, job


def test_evaluation_between_epochs_reads_the_rows_that_were_trained(executor: Executor) -> None:
    torch.manual_seed(1)
    model = DLRM()
    whole = copy.deepcopy(model)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.3)
    tests = clicks(ROWS, [6, 1], seed=9)
    data = clicks((3, 3, 3), [8, 8, 3])  # many rows are in the tests alone
    fitted, batches, own, job = fitted_model(executor, model, data)
    model.bottom.eval()
    with batches:
        for _ in range(2):
            for batch, plain in zip(
                batches.evaluate(tests), torch_batches(tests.batches), strict=True
            ):
                assert not model.training
                with torch.no_grad():
                    assert torch.equal(loss_of(fitted, batch), loss_of(whole, plain))
            assert model.training
            assert not model.bottom.training
            steps(fitted, batches, [own])
            steps(whole, torch_batches(data.batches), [optimizer])
    assert job.closed == 1


def test_rows_of_a_weight_without_values_begin_at_the_servers(executor: Executor) -> None:
    fitted, batches, _, job = fitted_model(executor, DLRM(device="meta"))
    with batches:
        (batch, *_) = batches.evaluate(DATA)
        assert len(batch[1]) == 16
        assert job.servers is not None
        assert job.servers.rows == {}
        assert sum(1 for _ in fitted.parameters()) == 6


def test_evaluation_refuses_ids_outside_of_their_table(executor: Executor) -> None:
    _, batches, _, _ = fitted_model(executor)
    with (
        batches,
        pytest.raises(
            EmbeddingError, match=r"^evaluation: example \d+: table tables\.1: id \d+, needs 0 to 6"
        ),
    ):
        list(batches.evaluate(clicks((20, 1000, 40), [16])))


def test_an_epoch_that_is_left_has_to_be_ended(executor: Executor) -> None:
    fitted, batches, optimizer, _ = fitted_model(executor)
    epoch = iter(batches)
    steps(fitted, [next(epoch)], [optimizer])
    for action in (batches.__iter__, lambda: batches.evaluate(DATA)):
        with pytest.raises(EmbeddingError, match="epoch 0 has not ended"):
            action()
    steps(fitted, epoch, [optimizer])
    assert batches.epoch == 1
    assert len(steps(fitted, batches, [optimizer])) == len(DATA.batches)
    batches.close()
    with pytest.raises(
        EmbeddingError, match="the batches are closed: epoch 2 needs another fit, of a"
    ):
        iter(batches)


def test_an_iterator_that_is_dropped_unused_is_no_epoch_and_no_evaluation(
    executor: Executor,
) -> None:
    """As of a zip whose other part was empty: all else then needed an end that none could make."""
    fitted, batches, optimizer, _ = fitted_model(executor)
    with batches:
        for iterable in (batches, batches.evaluate(DATA)):
            assert list(zip((), iterable, strict=False)) == []
        waiting = batches.evaluate(DATA)
        assert len(steps(fitted, batches, [optimizer])) == len(DATA.batches)
        epoch = iter(batches)
        steps(fitted, [next(epoch)], [optimizer])
        with pytest.raises(EmbeddingError, match="epoch 1 has not ended"):
            next(waiting)
        steps(fitted, epoch, [optimizer])


def test_batches_belong_to_the_process_that_made_them(executor: Executor) -> None:
    """A child that ended closed its parent's connections, and ended the processes of its job."""
    fitted, batches, optimizer, job = fitted_model(executor)
    epoch = iter(batches)
    steps(fitted, [next(epoch)], [optimizer])
    next(epoch)

    def use() -> None:
        for action in (optimizer.step, batches.weights, lambda: next(epoch)):
            with pytest.raises(ForkError, match=r"^the job of these batches belongs to the proc"):
                action()
        batches.close()
        batches._finalizer()

    assert status_of_child(use) == 0
    assert job.closed == 0
    optimizer.step()
    steps(fitted, epoch, [optimizer])
    batches.close()
    assert job.closed == 1


def test_a_batch_has_one_step(executor: Executor) -> None:
    fitted, batches, optimizer, _ = fitted_model(executor)
    with pytest.raises(EmbeddingError, match="a step without a batch"):
        optimizer.step()
    epoch = iter(batches)
    steps(fitted, [next(epoch)], [optimizer])
    with pytest.raises(EmbeddingError, match="a step without a batch"):
        optimizer.step()
    next(epoch)
    with pytest.raises(EmbeddingError, match="batch 1 had no step: call it after backward"):
        next(epoch)
    batches.close()


def test_rows_are_looked_up_in_batches_by_their_own_columns(executor: Executor) -> None:
    model = DLRM()
    _, batches, _, _ = fitted_model(executor, model)
    with pytest.raises(EmbeddingError, match=r"tables\.0 is used outside of a batch"):
        model(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64))
    _, ids, _ = next(iter(batches))
    with pytest.raises(EmbeddingError, match=r"tables\.1 gets ids of other columns"):
        model.tables[1](ids[:, 2:])
    batches.close()


def test_bags_of_a_column_that_had_none_are_refused(executor: Executor) -> None:
    """Their first ids, as many as examples, were looked up as those of the examples."""
    _, batches, _, _ = fitted_model(executor, DLRM())
    with batches, pytest.raises(EmbeddingError, match=r"column 1, which tables\.1 .* has bags of"):
        next(batches.evaluate(with_bags(DATA, [1])))


def test_evaluation_without_bags_has_the_form_of_bags(executor: Executor) -> None:
    """The model got a tensor where it had (ids, offsets) in training."""
    fitted, batches, _, _ = fitted_model(executor, Bags(), BAGS)
    with batches:
        evaluation = batches.evaluate(clicks((*ROWS, 9), [16]))
        dense, ids, _ = next(evaluation)
        assert ids[2][1].tolist() == [*range(16)]
        assert fitted(dense, ids).shape == (16,)


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


def test_evaluation_data_of_another_form_are_refused(executor: Executor) -> None:
    """A loader had no attribute "read", and columns behind those of training were not looked up."""
    _, batches, _, _ = fitted_model(executor)
    loader = DataLoader(TensorDataset(torch.zeros(4, 3)))
    with batches:
        with pytest.raises(
            EmbeddingError, match=r"^data is a DataLoader: pass LoaderData\(loader, "
        ):
            batches.evaluate(cast("ListData", loader))
        for rows in ((*ROWS, 9), ROWS[:2]):
            with pytest.raises(
                EmbeddingError, match=f"have {len(rows)} columns of ids, needs the 3"
            ):
                batches.evaluate(clicks(rows, [4]))
        assert next(batches.evaluate(clicks(ROWS, [4])))


def test_a_step_without_the_batches_is_named(executor: Executor) -> None:
    """It was a ReferenceError: a function had returned the model and the optimizer alone."""
    _, batches, optimizer, _ = fitted_model(executor)
    del batches
    with pytest.raises(EmbeddingError, match="the batches that fit returned are gone"):
        optimizer.step()


def test_the_rows_of_a_batch_are_no_part_of_states(executor: Executor) -> None:
    fitted, batches, _, _ = fitted_model(executor)
    names = [name for name in fitted.state_dict() if name.startswith("tables")]
    next(iter(batches))
    assert sum(1 for name, _ in fitted.named_parameters() if name.startswith("tables")) == 3
    assert names == [name for name in fitted.state_dict() if name.startswith("tables")] == []
    fitted.load_state_dict(fitted.state_dict())
    batches.close()


def test_states_of_optimizers_are_the_same_in_a_batch_and_between(executor: Executor) -> None:
    """They had the batch's rows among the parameters: no other moment could load them."""
    model = DLRM()
    optimizer = torch.optim.Adagrad(model.named_parameters(), lr=0.1)
    connect = InProcessJob(DATA).connect(executor)
    fitted, batches = fit_connected(model, DATA, optimizer=optimizer, connect=connect)
    between = copy.deepcopy(optimizer.state_dict())
    loss_of(fitted, next(iter(batches))).backward()
    state = optimizer.state_dict()
    assert state["param_groups"] == between["param_groups"]
    optimizer.load_state_dict(between)
    parameters = optimizer.param_groups[0]["params"]
    assert len(parameters) == len(list(fitted.parameters())), "the batch's rows are missing"
    for groups in ([], [{"params": [0]}]):
        with pytest.raises(ValueError, match="loaded state dict"):  # it left the rows out
            optimizer.load_state_dict({"state": {}, "param_groups": groups})
    assert len(optimizer.param_groups[0]["params"]) == len(parameters)
    optimizer.step()
    optimizer.load_state_dict(state)
    batches.close()


def test_parameters_that_are_averaged_after_steps_are_those_of_the_dense_part(
    executor: Executor,
) -> None:
    """Rows of the last batch were among them: RuntimeError, sizes of other parameters."""
    torch.manual_seed(1)
    model = DLRM()
    whole = copy.deepcopy(model)
    expected = torch.optim.swa_utils.AveragedModel(whole)
    reference_optimizer = torch.optim.SGD(whole.parameters(), lr=0.3)
    steps(
        whole,
        torch_batches(DATA.batches),
        [reference_optimizer],
        after_step=lambda: expected.update_parameters(whole),
    )
    fitted, batches, optimizer, _ = fitted_model(executor, model)
    average = torch.optim.swa_utils.AveragedModel(fitted)
    with batches:
        update = lambda: average.update_parameters(fitted)  # noqa: E731
        steps(fitted, batches, [optimizer], after_step=update)
    averaged = dict(average.module.named_parameters())
    assert len(averaged) == 6
    for name, weight in averaged.items():
        assert torch.equal(weight, expected.module.get_parameter(name)), name


def test_a_group_without_a_rate_changes_no_row(executor: Executor) -> None:
    model = DLRM()
    before = model.tables[0].weight.detach().clone()
    tables, dense = sparse_and_dense(model)
    optimizer = torch.optim.Adagrad(
        [{"params": tables[:1], "lr": 0.0}, {"params": tables[1:] + dense}]
    )
    job = InProcessJob(DATA)
    fitted, batches = fit_connected(model, DATA, optimizer=optimizer, connect=job.connect(executor))
    with batches:
        steps(fitted, batches, [optimizer])
        weights = batches.weights()
    assert torch.equal(weights["tables.0.weight"], before)
    assert not torch.equal(weights["tables.1.weight"], tables[1].detach())


def test_norms_are_clipped_with_the_rows_gradients(executor: Executor) -> None:
    torch.manual_seed(1)
    model = DLRM()
    whole = copy.deepcopy(model)
    reference_optimizer = torch.optim.SGD(whole.parameters(), lr=0.3)
    steps(
        whole,
        torch_batches(DATA.batches),
        [reference_optimizer],
        lambda: nn.utils.clip_grad_norm_(whole.parameters(), 0.05),
    )
    fitted, batches, optimizer, job = fitted_model(executor, model)
    with batches:
        clip = lambda: nn.utils.clip_grad_norm_(fitted.parameters(), 0.05)  # noqa: E731
        steps(fitted, batches, [optimizer], clip)
    trained = tables_of(job, fitted)
    for name, weight in whole.named_parameters():
        torch.testing.assert_close(trained[name], weight.detach(), rtol=1e-5, atol=1e-6)


def test_norms_of_groups_are_clipped_with_the_gradients_of_their_own_rows(
    executor: Executor,
) -> None:
    """Rows were in the first group, whichever had their weights."""

    def grouped(model: nn.Module) -> torch.optim.Optimizer:
        tables, dense = sparse_and_dense(model)
        return torch.optim.SGD([{"params": dense}, {"params": tables, "lr": 0.5}], lr=0.3)

    def clip(optimizer: torch.optim.Optimizer) -> None:
        for options in optimizer.param_groups:
            nn.utils.clip_grad_norm_(options["params"], 0.02)

    torch.manual_seed(1)
    model = DLRM()
    whole = copy.deepcopy(model)
    plain = grouped(whole)
    steps(whole, torch_batches(DATA.batches), [plain], lambda: clip(plain))
    own, job = grouped(model), InProcessJob(DATA)
    fitted, batches = fit_connected(model, DATA, optimizer=own, connect=job.connect(executor))
    with batches:
        steps(fitted, batches, [own], lambda: clip(own))
    assert [len(options["params"]) for options in own.param_groups] == [6, 0]
    trained = tables_of(job, fitted)
    for name, weight in whole.named_parameters():
        torch.testing.assert_close(trained[name], weight.detach(), rtol=1e-5, atol=1e-6)


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


def test_autocast_has_the_losses_of_torch(executor: Executor) -> None:
    def cast(
        model: nn.Module, batches: Iterable[Sequence[Tensor]], optimizer: torch.optim.Optimizer
    ) -> list[float]:
        losses: list[float] = []
        for batch in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, tuple(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    torch.manual_seed(1)
    model = DLRM()
    whole = copy.deepcopy(model)
    fitted, batches, own, _ = fitted_model(executor, model)
    reference_optimizer = torch.optim.SGD(whole.parameters(), lr=0.3)
    with batches:
        losses = cast(whole, torch_batches(DATA.batches), reference_optimizer)
        assert cast(fitted, batches, own) == losses


def scaled_steps(
    model: nn.Module,
    batches: Iterable[Sequence[Tensor]],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    before_step: Callable[[], object] = lambda: None,
) -> list[float]:
    """Train with a scaled loss, which overflows in one batch; return the scales."""
    scales: list[float] = []
    for number, batch in enumerate(batches):
        loss = loss_of(model, tuple(batch)) * (torch.inf if number == 3 else 1.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        before_step()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_step_that_a_scaler_skips_changes_no_row(executor: Executor) -> None:
    torch.manual_seed(1)
    model = DLRM()
    whole = copy.deepcopy(model)
    (plain,) = OPTIMIZERS["adagrad"](whole)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with gradients_of_used_rows(whole) as convert:
        scales = scaled_steps(whole, torch_batches(DATA.batches), plain, scaler, convert)
    assert scales[2:4] == [2.0**10, 2.0**9]
    (optimizer,) = OPTIMIZERS["adagrad"](model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    job = InProcessJob(DATA)
    fitted, batches = fit_connected(
        model, DATA, optimizer=optimizer, connect=job.connect(executor), scaler=scaler
    )
    with batches:
        assert scaled_steps(fitted, batches, optimizer, scaler) == scales
    trained = tables_of(job, fitted)
    for name, weight in whole.named_parameters():
        assert torch.equal(trained[name], weight.detach()), name


def test_a_scaler_that_fit_does_not_know_is_refused(executor: Executor) -> None:
    fitted, batches, optimizer, _ = fitted_model(executor)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with pytest.raises(EmbeddingError, match="batch 3 had no step: .* pass it as scaler="):
        scaled_steps(fitted, batches, optimizer, scaler)
    batches.close()


def test_a_fused_optimizer_is_refused_with_a_scaler(executor: Executor) -> None:
    model = DLRM()
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    job = InProcessJob(DATA)
    fitted, batches = fit_connected(
        model, DATA, optimizer=optimizer, connect=job.connect(executor), scaler=scaler
    )
    with pytest.raises(EmbeddingError, match="make it with fused=False"):
        scaled_steps(fitted, batches, optimizer, scaler)
    batches.close()


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
        (DLRM, lambda m: torch.optim.Adam(m.parameters()), {}, "embedding rows is Adam, needs"),
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


def test_a_large_table_is_no_tensor() -> None:
    table = EmbeddingTable(name="users", rows=(1 << 27) + 1, dim=2)
    job = description(tables=(table,), groups=table_groups((table,)))
    with pytest.raises(EmbeddingError, match="table users has too many rows for a tensor of all"):
        whole_table(cast(TrainerServers, None), job, 0)


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


def test_a_dense_part_without_values_is_refused() -> None:
    """It was run beside examples on the CPU: torch's error of two devices."""
    with torch.device("meta"):
        model = DLRM()
    with pytest.raises(
        EmbeddingError, match=r'bottom\.0\.weight is on the device "meta", which is'
    ):
        _device(model, embedding_modules(model))
