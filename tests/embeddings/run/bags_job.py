"""A script that trains on bags with a scaled loss: ``bags_job.py FILE OUTPUT``.

In its second epoch one trainer's loss overflows in one batch. Then all load a folder that is not
there, and clip gradients.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import torch
from torch import nn

from headrace.embeddings import EmbeddingError, ParquetData, ParquetFormat, fit
from tests.embeddings.run.in_process import ListData, clicks, with_bags
from tests.embeddings.run.models import DENSE, ROWS, Bags, loss_of

BATCH = 16
COLUMNS = 4
EPOCHS = 3
OVERFLOWS = (1, 3)
"""Epoch and batch."""


def examples() -> ListData:
    """Return batches of which the last has one example: the second trainer's share has none."""
    return with_bags(clicks((*ROWS, 9), [BATCH] * 7 + [1]), (0, 2))


def write(path: Path) -> None:
    columns: dict[str, list[Any]] = {}
    for batch in examples().batches:
        assert batch.labels is not None
        columns.setdefault("label", []).extend(batch.labels.tolist())
        for feature in range(DENSE):
            columns.setdefault(f"dense {feature}", []).extend(batch.dense[:, feature].tolist())
        for column, (ids, lengths) in enumerate(zip(batch.ids, batch.lengths, strict=True)):
            flat = iter(ids.tolist())
            values: list[Any] = (
                [*flat] if lengths is None else [[next(flat) for _ in range(n)] for n in lengths]
            )
            columns.setdefault(f"ids {column}", []).extend(values)
    pyarrow.parquet.write_table(pa.table(columns), path)


def data_of(path: str | Path) -> ParquetData:
    layout = ParquetFormat(
        ids=tuple(f"ids {column}" for column in range(COLUMNS)),
        dense=tuple(f"dense {feature}" for feature in range(DENSE)),
    )
    return ParquetData.of([path], batch=BATCH, layout=layout)


def model_of() -> nn.Module:
    torch.manual_seed(1)
    return Bags().double()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batches: Iterable[Any],
    *,
    epoch: int,
    overflows: bool,
) -> None:
    for number, batch in enumerate(batches):
        loss = loss_of(model, batch)
        if overflows and (epoch, number) == OVERFLOWS:
            loss = loss * torch.inf
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def main(path: str, output: str) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    data = data_of(path)
    trainer = int(os.environ["RANK"])
    fitted, batches = fit(model, data, optimizer=optimizer, scaler=scaler)
    for epoch in range(EPOCHS):
        train(fitted, optimizer, scaler, batches, epoch=epoch, overflows=trainer == 1)
    scores = [fitted(batch[0], batch[1]) for batch in batches.evaluate(data)]
    try:
        batches.load(f"{output}nothing")
    except EmbeddingError as error:
        print(f"not loaded: {error}", flush=True)
    weights = batches.weights()
    dense = {name: weight.detach() for name, weight in model.named_parameters()}
    torch.save({**dense, **weights, "scores": torch.cat(scores).detach()}, f"{output}{trainer}")
    print(f"scale {scaler.get_scale():g}")
    batch = next(iter(batches))
    loss_of(fitted, batch).backward()
    nn.utils.clip_grad_norm_(fitted.parameters(), 1e-6)
    try:
        optimizer.step()
    except EmbeddingError as error:
        print(error)
    batches.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
