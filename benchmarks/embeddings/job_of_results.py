"""A trainer of `benchmarks.embeddings.results`: ``job_of_results.py CASE TRAIN HELD-OUT FOLDER``.

It trains one epoch of a file by `headrace.embeddings.fit`, evaluates on another one, and trains an
epoch more. Every trainer writes the losses of its shares and of the evaluation, trainer 0 what was
trained.
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.embeddings.cases import OPTIMIZERS, Case
from benchmarks.embeddings.reference import DENSE_RATE, Recommender
from headrace.embeddings import fit


class ById(nn.Module):
    """The reference's model, on ids as the data has them: [examples, tables]."""

    def __init__(self, model: Recommender, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self._dtype = dtype

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Return logits."""
        return self.model(dense.to(self._dtype), ids.unbind(1))


def main(case_text: str, train: str, held_out: str, folder: str) -> None:
    """Run the job."""
    torch.set_num_threads(1)
    case = Case.from_fields(json.loads(case_text))
    shape = case.shape
    tables = [shape.table(number) for number in range(len(shape.counts))]
    recommender = Recommender(shape, tables)
    weights: list[Tensor] = [table.weight for table in recommender.embeddings]  # type: ignore[misc]
    optimizers = [
        torch.optim.SGD(recommender.dense_part.parameters(), lr=DENSE_RATE),
        OPTIMIZERS[case.optimizer](weights),
    ]
    module = ById(recommender, shape.dtype)
    data = case.data_in(Path(train))
    model, batches = fit(module, data, optimizer=optimizers, cache="4MiB")
    losses: list[list[float]] = []

    def loss_of(batch: tuple[Any, ...]) -> Tensor:
        dense, ids, labels = batch
        logits = model(dense, ids)
        return functional.binary_cross_entropy_with_logits(logits, labels.to(shape.dtype))

    def epoch(examples: Iterable[tuple[Any, ...]]) -> None:
        for batch in examples:
            loss = loss_of(batch)
            losses.append([float(loss.detach()), len(batch[2])])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()

    epoch(batches)
    with torch.no_grad():
        evaluated = [
            [float(loss_of(batch)), len(batch[2])]
            for batch in batches.evaluate(case.data_in(Path(held_out)))
        ]
    epoch(batches)
    rows = batches.weights()
    trainer = os.environ.get("RANK", "0")
    written = {"losses": losses, "evaluated": evaluated}
    Path(folder, f"{trainer}.json").write_text(json.dumps(written))
    if trainer == "0":
        dense = {name: value.detach() for name, value in recommender.dense_part.named_parameters()}
        torch.save({"rows": list(rows.values()), "dense": dense}, Path(folder, "trained.pt"))
    batches.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
