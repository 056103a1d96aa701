"""Trains a small DLRM on clicks: ``clicks_job.py FILE OUTPUT [SOURCE]``.

With "loader" it reads the file itself, and shuffles it; with "kill-N" or "stop-N" trainer 1 ends
or stops itself at batch N of the second epoch; with "ends-N" it ends before epoch N, with "ends-0"
before it joins the job. With "load-N" rows of the folder that LOADED names are loaded after the
first epoch, and trainer 1 ends itself at batch N of the second one, unless the job began there.
Trainer 0 saves parameters and embedding rows. After the first epoch it waits for the file that
AWAITED names.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from headrace.embeddings import CriteoData, CriteoFormat, LoaderData, fit

TABLES = 26
ROWS = 30
BATCH = 48
EPOCHS = 2


class Model(nn.Module):
    """Dense and sparse features, and the products of each two."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.bottom = nn.Linear(13, dim)
        self.tables = nn.ModuleList(nn.Embedding(ROWS, dim) for _ in range(TABLES))
        self.top = nn.Linear(dim + TABLES * (TABLES + 1) // 2, 1)
        self.double()

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        bottom = self.bottom(dense.double())
        rows = [table(ids[:, column]) for column, table in enumerate(self.tables)]
        features = torch.stack([bottom, *rows], dim=1)
        products = features @ features.transpose(1, 2)
        first, second = torch.triu_indices(TABLES + 1, TABLES + 1, offset=1)
        return self.top(torch.cat([bottom, products[:, first, second]], dim=1)).squeeze(1)


def model_and_optimizer() -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = Model()
    return model, torch.optim.Adagrad(model.parameters(), lr=0.05)


def schedule_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.StepLR:
    """Return a schedule with a step after every epoch."""
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def data_of(path: str | Path) -> CriteoData:
    return CriteoData.of([path], batch=BATCH, layout=CriteoFormat(rows=(ROWS,) * TABLES))


def torch_batches(data: CriteoData) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [
        (
            torch.from_numpy(examples.dense),
            torch.stack([torch.from_numpy(ids) for ids in examples.ids], dim=1),
            torch.from_numpy(examples.labels),
        )
        for examples in data.read()
        if examples.labels is not None
    ]


def loader_of(path: str | Path) -> DataLoader[tuple[Tensor, ...]]:
    """Return a loader whose order differs by the epoch of its sampler."""
    columns = zip(*torch_batches(data_of(path)), strict=True)
    examples = TensorDataset(*(torch.cat(parts) for parts in columns))
    sampler = DistributedSampler(examples, num_replicas=1, rank=0, seed=3)
    return DataLoader(examples, batch_size=BATCH, sampler=sampler)


def epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Any],
    most: int | None = None,
    end: signal.Signals = signal.SIGKILL,
) -> float:
    """Train; return the last batch's loss of this trainer's share.

    Parameters
    ----------
    most : batches after which the process sends itself the signal `end`.
    """
    loss = torch.zeros(1)
    for number, (dense, ids, labels) in enumerate(batches):
        if number == most:
            os.kill(os.getpid(), end)
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(dense, ids), labels.double())
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def await_file(path: str | None) -> None:
    """Wait until a test has made a file, if it is to make one."""
    while path is not None and not Path(path).exists():
        time.sleep(0.01)


def main(path: str, output: str, source: str = "files") -> None:
    if source == "loader":
        data = LoaderData(loader_of(path), batch=BATCH, columns=TABLES)
    else:
        data = data_of(path)
    model, optimizer = model_and_optimizer()
    trainer = os.environ.get("RANK", "0")
    end, _, batch = source.partition("-")
    epochs = int(batch) if end == "ends" and trainer == "1" else EPOCHS
    if epochs == 0:
        return
    schedule = schedule_of(optimizer)
    fitted, batches = fit(model, data, optimizer=optimizer, state={"schedule": schedule})
    signals = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "load": signal.SIGKILL}
    ends = end in signals and not (end == "load" and batches.epoch > 0)
    end_at = int(batch) if ends else None
    for number in range(batches.epoch, epochs):
        most = end_at if trainer == "1" and number == 1 else None
        loss = epoch(fitted, optimizer, batches, most, signals.get(end, signal.SIGKILL))
        schedule.step()
        if end == "load" and number == 0:
            batches.load(os.environ["LOADED"])
        print(f"epoch {number}: loss {loss:.6f}")
        if number == 0:
            await_file(os.environ.get("AWAITED"))
    if epochs < EPOCHS:
        batches.close()
        return
    weights = batches.weights()
    if trainer == "0":
        dense = {name: weight.detach() for name, weight in model.named_parameters()}
        torch.save({**dense, **weights}, output)
    batches.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
