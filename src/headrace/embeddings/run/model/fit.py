"""The user's entry: a model whose embedding rows are in caches, and the batches to train on."""

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

from headrace.embeddings.data.examples import Examples, is_count
from headrace.embeddings.data.files import ExampleData, check_data
from headrace.embeddings.data.loader import LoaderData
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.model.columns import table_columns
from headrace.embeddings.run.model.fitted import FittedBatches
from headrace.embeddings.run.model.leaves import BatchIds, Leaves
from headrace.embeddings.run.model.modules import EmbeddingModule, embedding_modules
from headrace.embeddings.run.model.optimizer_groups import ruled_rows
from headrace.embeddings.run.model.table_files import BLOCK
from headrace.embeddings.run.model.taken_weights import taken_weights
from headrace.embeddings.run.servers.row_client import ServerConnections
from headrace.embeddings.run.slots import slots_of_groups
from headrace.embeddings.run.trainers.agree import any_trainer
from headrace.embeddings.run.trainers.committer import Committer
from headrace.embeddings.run.trainers.connections import Connect, JobCommits, TrainerConnections
from headrace.embeddings.run.trainers.dense import DenseGradients
from headrace.embeddings.run.trainers.trainer_state import Stateful, TrainerState
from headrace.embeddings.tables import EmbeddingTable, InitialValues, TableGroup
from headrace.units import parse_size

_EXAMPLES = 4
"""Of the run that shows which columns feed which module."""

Forward = Callable[[nn.Module, tuple[Any, ...]], object]
"""Runs a model on a batch (dense, ids, labels)."""


def fit_connected(
    model: nn.Module,
    data: ExampleData,
    *,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    connect: Connect,
    cache: str | int = "1GiB",
    ids: Mapping[str, Sequence[int]] | None = None,
    initial: InitialValues | Mapping[str, InitialValues] | None = None,
    forward: Forward | None = None,
    scaler: GradScaler | None = None,
    state: Mapping[str, Stateful] | None = None,
    find_unused_parameters: bool = False,
    seed: int = 0,
) -> tuple[nn.Module, FittedBatches]:
    """Put a model's embedding rows into servers and caches; return it, and the batches to train on.

    It is `headrace.embeddings.fit`, for a job that is joined otherwise.

    Parameters
    ----------
    connect : joins the job.
    others : see there.

    Raises
    ------
    EmbeddingError, CommunicationError : see there.
    """
    if isinstance(model, DistributedDataParallel):
        raise EmbeddingError("the model is in DistributedDataParallel: pass it before, fit does so")
    check_data(data)
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    modules = embedding_modules(model)
    _warn_of_hooks(modules)
    examples = data.first(_EXAMPLES)
    columns = _columns(model, modules, examples, ids, forward)
    ruled = ruled_rows(modules, optimizers)
    tables = embedding_tables(modules, initial)
    description = _description(modules, tables, columns, ruled.groups, cache, seed, data)
    device = _device(model, modules)
    connections = connect(description)
    with _closed_on_failure(connections), taken_weights(modules, ruled.optimizer) as weights:
        trainer, trainers = connections.executor.rank, connections.executor.ranks
        begun = _begins_from_commit(connections.commits, data)
        if trainer == 0 and not begun:
            _load(description.tables, weights, connections.servers)
        committer = _committer(connections, model, optimizers, state or {})
        dense = DenseGradients()
        fitted = model
        if trainers > 1:
            fitted = _averaged(model, dense, trainer, trainers, find_unused_parameters)
        # when the first has loaded weights
        any_trainer(connections.executor, connections.deadline_s, "fit")
        if committer is not None:
            committer.restore()
        bags = [lengths is not None for lengths in examples.lengths]
        leaves = Leaves(modules, columns, bags, registered=trainers == 1)
        batches = FittedBatches(
            fitted, connections, description, ruled, leaves, dense, device, scaler, committer
        )
    return fitted, batches


def _warn_of_hooks(modules: Sequence[EmbeddingModule]) -> None:
    """Warn of hooks on the gradients of weights, such as those of `wandb.watch`."""
    weights: dict[str, str] = {}  # of each hook, the first one that has it
    for embedding in modules:
        weight = embedding.module.weight
        behind = weight._post_accumulate_grad_hooks  # pyright: ignore[reportPrivateUsage]
        for hooks in (weight._backward_hooks, behind):
            for hook in (hooks or {}).values():
                name = getattr(hook, "__qualname__", type(hook).__name__)
                weights.setdefault(name, embedding.weight_name)
    for name, weight_name in weights.items():
        warnings.warn(
            f"{name}, a hook on the gradient of {weight_name}, is not called any more: rows of a "
            "batch take the place of the weight. Register hooks after fit: they are then those of "
            "the dense part alone",
            stacklevel=4,
        )


@contextmanager
def _closed_on_failure(connections: TrainerConnections) -> Generator[None]:
    """Close a trainer's connections if the block fails: at once, not with the last frame."""
    try:
        yield
    except BaseException:
        connections.servers.close()
        connections.close()
        raise


def _description(
    modules: Sequence[EmbeddingModule],
    tables: tuple[EmbeddingTable, ...],
    columns: Sequence[tuple[int, ...]],
    groups: tuple[TableGroup, ...],
    cache: str | int,
    seed: int,
    data: ExampleData,
) -> JobDescription:
    cache_bytes = parse_size(cache, "cache") if isinstance(cache, str) else cache
    if not is_count(cache_bytes):
        raise EmbeddingError(f'cache is {cache!r}, needs bytes, an int, or a text as "1GiB"')
    rows = [embedding.rows for embedding in modules]
    return JobDescription(
        tables=tables,
        columns=tuple(columns),
        groups=groups,
        slots=slots_of_groups(groups, columns, rows, cache_bytes),
        seed=_seed_of_mark(seed),
        data=data.to_fields(),
    )


def _seed_of_mark(seed: int) -> int:
    """Return a seed whose lowest 64 bits, by which rows begin, are the same, as marks can have it.

    A file of JSON is refused with a number of more than 64 bits.
    """
    return seed if -(1 << 63) <= seed < 1 << 64 else seed % (1 << 64)


def _begins_from_commit(commits: JobCommits | None, data: ExampleData) -> bool:
    """Return whether a job begins from a commit.

    Raises
    ------
    EmbeddingError : it makes commits, and a loader need not have the same batches behind one again.
    """
    if commits is None:
        return False
    if isinstance(data, LoaderData):
        data.check_order()
    return commits.mark is not None


def _committer(
    connections: TrainerConnections,
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    state: Mapping[str, Stateful],
) -> Committer | None:
    """Return the committer, if the job commits."""
    if connections.commits is None:
        return None
    trainer_state = TrainerState(model, optimizers, state)
    return Committer(connections.commits, trainer_state, connections.executor.rank)


def _columns(
    model: nn.Module,
    modules: Sequence[EmbeddingModule],
    examples: Examples,
    ids: Mapping[str, Sequence[int]] | None,
    forward: Forward | None,
) -> list[tuple[int, ...]]:
    """Return the columns that each module looks up, rising."""
    columns = len(examples.ids)
    if ids is not None:
        return _named_columns(modules, ids, columns)
    device = _device(model, modules)
    dense = torch.from_numpy(examples.dense.copy()).to(device)
    labels = () if examples.labels is None else (torch.tensor(examples.labels, device=device),)
    run = forward or (lambda model, batch: model(*batch[:2]))

    def call(numbers: Tensor) -> object:
        numbers = numbers.to(device)
        offsets = torch.arange(len(numbers), device=device)
        form: BatchIds = numbers
        if any(lengths is not None for lengths in examples.lengths):
            form = tuple(
                column if lengths is None else (column, offsets)
                for column, lengths in zip(numbers.unbind(1), examples.lengths, strict=True)
            )
        return run(model, (dense, form, *labels))

    shape = torch.empty(len(examples), columns, dtype=torch.int64, device="meta")
    return table_columns(model, modules, shape, call)


def _named_columns(
    modules: Sequence[EmbeddingModule], ids: Mapping[str, Sequence[int]], count: int
) -> list[tuple[int, ...]]:
    names = [embedding.name for embedding in modules]
    if set(names) != set(ids):
        raise EmbeddingError(
            f"ids are of {', '.join(sorted(ids))}, needs the modules {', '.join(names)}"
        )
    for name, columns in ids.items():
        if not _are_columns(columns, count):
            raise EmbeddingError(
                f"ids of {name} are {columns!r}, needs a list of columns from 0 to {count - 1}"
            )
    return [tuple(sorted(set(ids[name]))) for name in names]


def _are_columns(columns: Any, count: int) -> bool:
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        return False
    return len(columns) > 0 and all(0 <= column < count for column in columns)


def embedding_tables(
    modules: Sequence[EmbeddingModule], initial: InitialValues | Mapping[str, InitialValues] | None
) -> tuple[EmbeddingTable, ...]:
    """Return the tables of a model's modules.

    Parameters
    ----------
    initial : values of rows, of all modules or by name; uniform if absent.

    Raises
    ------
    EmbeddingError : `initial` names something else.
    """
    by_name = initial if isinstance(initial, Mapping) else {}
    names = {embedding.name for embedding in modules}
    if unknown := set(by_name) - names:
        raise EmbeddingError(
            f"initial values are of {min(unknown)}, which is no embedding module of the model"
        )
    shared = initial if isinstance(initial, InitialValues) else InitialValues()
    return tuple(
        EmbeddingTable(
            name=embedding.name,
            rows=embedding.rows,
            dim=embedding.dim,
            initial=by_name.get(embedding.name, shared),
            padding=embedding.padding,
        )
        for embedding in modules
    )


def _load(
    tables: Sequence[EmbeddingTable], weights: Sequence[Tensor], servers: ServerConnections
) -> None:
    """Load the weights that have values to the servers."""
    for number, (table, weight) in enumerate(zip(tables, weights, strict=True)):
        if weight.is_meta:
            if table.padding is not None:  # torch begins with zeros, too
                rows = np.zeros((1, table.dim), str(weight.dtype).removeprefix("torch."))
                servers.load(number, np.array([table.padding]), rows)
            continue
        for start in range(0, len(weight), BLOCK):
            rows = weight[start : start + BLOCK].cpu().numpy()
            servers.load(number, np.arange(start, start + len(rows)), rows)


def _averaged(
    model: nn.Module,
    dense: DenseGradients,
    trainer: int,
    trainers: int,
    find_unused_parameters: bool,
) -> nn.Module:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    if not dist.is_initialized():
        dist.init_process_group("headrace")
    elif (dist.get_rank(), dist.get_world_size()) != (trainer, trainers):
        raise EmbeddingError(
            f"torch's default process group has rank {dist.get_rank()} of {dist.get_world_size()} "
            f"here, which is trainer {trainer} of {trainers}: needs the same, or none"
        )
    fitted = DistributedDataParallel(model, find_unused_parameters=find_unused_parameters)
    fitted.register_comm_hook(dense, DenseGradients.average)
    return fitted


def _device(model: nn.Module, modules: Sequence[EmbeddingModule]) -> torch.device:
    """Return the device of a model's dense part, or of its embedding weights if it has none.

    Raises
    ------
    EmbeddingError : these are on several, or one of the dense part is on "meta", without values.
    """
    weights = {id(embedding.module.weight) for embedding in modules}
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_meta and id(tensor) not in weights:
            raise EmbeddingError(
                f'{name} is on the device "meta", which is for the weights of embedding modules: '
                'make these alone there, by device="meta", and the dense part with values'
            )
    parameters = chain(model.parameters(), model.buffers())
    tensors = [tensor for tensor in parameters if not tensor.is_meta]
    dense = [tensor for tensor in tensors if id(tensor) not in weights]
    devices = {tensor.device for tensor in dense or tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise EmbeddingError(f"the model is on {names}, needs one device beside embedding weights")
    return devices.pop() if devices else torch.device("cpu")
