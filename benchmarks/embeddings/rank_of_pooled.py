"""One rank of the pooled rival, with the messages and batches of `rank_of_torchrec`."""

import time
from itertools import cycle, islice
from typing import Any

import torch
import torch.distributed as dist

import headrace.torch
from benchmarks.embeddings.drawn import drawn_batches
from benchmarks.embeddings.rivals import PooledRows
from headrace.launch.worker import Receive, Send, run_worker

RATE = 0.01


def work(receive: Receive, send: Send) -> None:
    """Answer until the parent is gone; a task's "backend" is that of torch.distributed."""
    torch.set_num_threads(1)
    task = receive()
    counts, dim = tuple(task["counts"]), task["dim"]
    dist.init_process_group("gloo", rank=task["rank"], world_size=task["ranks"])
    group: Any = dist.new_group(backend=task["backend"])
    rows = PooledRows(
        group,
        counts,
        lambda table: torch.rand(counts[table], dim),
        lambda parameters: torch.optim.SGD(parameters, lr=RATE),
    )
    drawn = islice(drawn_batches(counts, task["batch"]), task["batches"])
    batches = cycle([rows.prepare(batch) for batch in drawn])
    send(ready=torch.__version__)
    while True:
        steps = receive()["steps"]
        seconds: list[float] = []
        for _ in range(steps):
            began = time.perf_counter()
            ids = next(batches)
            fetched = rows.fetch(ids).requires_grad_()
            rows.lookup(ids, fetched).sum().backward()
            assert fetched.grad is not None
            rows.write_back(ids, fetched.grad)
            headrace.torch.step()
            seconds.append(time.perf_counter() - began)
        send(seconds=seconds)


if __name__ == "__main__":
    run_worker(work)
