"""Fits of small models in this process: data, optimizers, and what the servers have after it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.embeddings.run.commits import CommitFolder
from headrace.embeddings.run.model.fit import fit_connected
from headrace.embeddings.run.model.fitted import FittedBatches
from headrace.embeddings.run.trainers.connections import JobCommits
from headrace.executor import Executor
from tests.embeddings.run.in_process import InProcessJob, ListData, clicks, with_bags
from tests.embeddings.run.models import DLRM, ROWS

DATA = clicks(ROWS, [16, 16, 16, 16, 16, 16, 16, 5])
BAGS = with_bags(clicks((*ROWS, 9), [16] * 7 + [5]), (0, 2))
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


POSITION = ("commit", "epoch", "epoch_began", "batch", "steps")
"""Fields of a mark."""


class CommittingJob(InProcessJob):
    """A job that makes commits in a folder.

    Attributes
    ----------
    positions : of the commits, in their order.
    """

    def __init__(self, folder: Path, commit_every: int = 0, data: ListData = DATA) -> None:
        self.positions: list[Mapping[str, int]] = []
        state = CommitFolder(folder)
        self.made = JobCommits(folder=state, start=state.begin(), mark=None, report=self._note)
        super().__init__(data, commit_every=commit_every, commits=self.made)

    def _note(self, fields: Mapping[str, Any]) -> None:
        self.positions.append({name: fields[name] for name in POSITION})
