"""A trainer of `benchmarks.embeddings.recovery`: ``job_of_recovery.py FILE FOLDER ROWS EPOCHS``.

Every number of a row counts the row's uses: the loss is the sum of all rows that an example uses,
the rate the size of a batch. The dense part is one number, and moves by 1 with every batch. Both
are exact. Trainer 0 prints every batch that it begins, and in the end compares with the data.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from headrace.embeddings import CriteoData, CriteoFormat, fit

TABLES = 26
DIM = 16
BATCH = 1024
"""A power of two: its inverse, and sums of it, are exact."""


class Counters(nn.Module):
    """Rows of counters, and one more that every example uses."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding.from_pretrained(torch.zeros(rows, DIM), freeze=False)
            for _ in range(TABLES)
        )
        self.batches = nn.Parameter(torch.zeros(1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Return a sum for each example."""
        rows = [table(ids[:, column]).sum(dim=1) for column, table in enumerate(self.tables)]
        return torch.stack(rows).sum(dim=0) + self.batches.expand(len(dense)) / BATCH


def data_of(path: str, rows: int) -> CriteoData:
    """Return the clicks, whose ids are below `rows`."""
    return CriteoData.of([path], batch=BATCH, layout=CriteoFormat(rows=(rows,) * TABLES))


def lost_updates(data: CriteoData, weights: dict[str, Tensor], epochs: int) -> int:
    """Return updates of rows that are missing, or were made twice, by each row's worst number."""
    assert data.layout.rows is not None
    uses = [torch.zeros(count) for count in data.layout.rows]
    for examples in data.read():
        for table, ids in enumerate(examples.ids):
            uses[table] += torch.from_numpy(np.bincount(ids, minlength=len(uses[table]))).float()
    errors = [
        weights[f"tables.{table}.weight"] + epochs * count[:, None]
        for table, count in enumerate(uses)
    ]
    return sum(round(float(error.abs().amax(1).sum())) for error in errors)


def main(path: str, folder: str, rows: str, epochs: str) -> None:
    """Train."""
    torch.set_num_threads(1)
    data = data_of(path, int(rows))
    model = Counters(int(rows))
    optimizer = torch.optim.SGD(model.parameters(), lr=BATCH)
    fitted, batches = fit(model, data, optimizer=optimizer, cache="256MiB")
    first = os.environ.get("RANK", "0") == "0"
    done = 0
    for epoch in range(batches.epoch, int(epochs)):
        for dense, ids, _ in batches:
            if first:
                print(f"batch {epoch} {done}", flush=True)
            done += 1
            optimizer.zero_grad()
            fitted(dense, ids).mean().backward()
            optimizer.step()
    weights = batches.weights()
    if first:
        result = {
            "lost": lost_updates(data, weights, int(epochs)),
            "batches": -float(model.batches),
        }
        (Path(folder) / "result.json").write_text(json.dumps(result))
    batches.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
