"""One trainer of tables in shards: it writes its shard as a checkpoint, or begins with it."""

import os
import time

import torch
from torch import nn

from benchmarks.embeddings.job_of_recovery import DIM, TABLES
from headrace.launch.worker import Receive, Send, run_worker


def work(receive: Receive, send: Send) -> None:
    """Do the parent's task, then wait for its end."""
    task = receive()
    began = time.perf_counter()
    rows = task["rows"] // task["ranks"]
    numbers = torch.rand if task["task"] == "write" else torch.empty
    tables = nn.ModuleList(nn.Embedding.from_pretrained(numbers(rows, DIM)) for _ in range(TABLES))
    if task["task"] == "write":
        began = time.perf_counter()
        with open(task["path"], "wb") as file:
            torch.save(tables.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
    else:
        tables.load_state_dict(torch.load(task["path"], weights_only=True))
    send(seconds=time.perf_counter() - began)
    receive()


if __name__ == "__main__":
    run_worker(work)
