"""A trainer that trains by both rivals on both backends, and compares with one process."""

import os
from itertools import product

import numpy as np
import torch
import torch.distributed as dist

import headrace.torch
from benchmarks.embeddings.reference import ModelShape, train_alone, train_by_rival
from headrace.embeddings import Examples

COUNTS = (40, 3, 17, 200)
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.2),
}


def batches() -> list[Examples]:
    """Batches, not all of which the trainers share equally."""
    random = np.random.default_rng(3)
    sizes = (13, 8, 9, 1, 16)
    return [
        Examples(
            labels=random.integers(0, 2, size).astype(np.float32),
            dense=random.standard_normal((size, 13)).astype(np.float32),
            ids=tuple((count * random.random(size) ** 2).astype(np.int64) for count in COUNTS),
            lengths=(None,) * len(COUNTS),
        )
        for size in sizes
    ]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups: dict[str, dist.ProcessGroup | None] = {
        "gloo": None,
        "headrace": dist.new_group(backend="headrace"),  # type: ignore[dict-item]
    }
    for name, optimizer in (("DLRM", "sgd"), ("Wide & Deep", "adagrad")):
        shape = ModelShape(name=name, counts=COUNTS, dim=5)
        tables = [shape.table(number) for number in range(len(COUNTS))]
        expected = train_alone(shape, tables, [batches()], OPTIMIZERS[optimizer])
        for rival, backend in product(("pooled", "distinct"), groups):
            share = train_by_rival(
                rival,
                shape,
                batches(),
                OPTIMIZERS[optimizer],
                groups[backend],
                headrace.torch.step if backend == "headrace" else lambda: None,
            )
            losses = torch.tensor(share.losses)
            dist.all_reduce(losses)
            torch.testing.assert_close(losses, torch.tensor(expected.losses), rtol=1e-6, atol=0)
            stored = 0
            for table, (numbers, rows) in share.rows.items():
                reference = expected.tables[table][numbers]
                torch.testing.assert_close(rows, reference, rtol=1e-9, atol=1e-12)
                stored += len(rows)
            assert 0 < stored < sum(COUNTS)
            moved = sum(
                float((rows - tables[table][numbers]).abs().sum())
                for table, (numbers, rows) in share.rows.items()
            )
            assert moved > 1e-3
            torch.testing.assert_close(share.dense, expected.dense, rtol=1e-9, atol=1e-12)
    print(f"trainer {os.environ['RANK']} agrees", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
