"""One rank of a job that torchrun starts again when a host is lost; run by test_elastic.py."""

import dataclasses
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed
from headrace.collectives.run import bootstrap as automatic

HOSTS, STEPS = 3, 60


def main() -> None:
    folder, host = Path(sys.argv[1]), sys.argv[2]
    (folder / f"{host}.pid").write_text(str(os.getpid()))
    automatic.EFFORT = dataclasses.replace(
        automatic.EFFORT, budget_s=5.0, tournament_us=5000, quiet_us=8000, sharing_us=8000
    )
    dist.init_process_group("headrace", timeout=timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    done = folder / "steps"
    first = torch.tensor([int(done.read_text()) if done.exists() else 0])
    dist.broadcast(first, 0)
    if rank == 0:
        (folder / "ranks").write_text(str(ranks))
    # Until a host is lost the job trains on, and counts half of the steps: on a busy machine a host
    # may start late, and the test may see late that all take part.
    last = STEPS if ranks < HOSTS and (folder / "lost").exists() else STEPS // 2
    step = int(first)
    while step < STEPS:
        tensor = torch.full((1 << 16,), float(rank + 1))
        dist.all_reduce(tensor)
        assert (tensor == ranks * (ranks + 1) / 2).all()
        if rank == 0:
            (folder / "new").write_text(str(step + 1))
            (folder / "new").replace(done)
        step = min(step + 1, last)
        time.sleep(0.02)
    group: Any = dist.distributed_c10d._get_default_group()
    choice = group._caller._chooser.choose("allreduce", 1 << 18)
    print(f"{host}: {STEPS} steps, the last over {ranks} ranks by {choice.origin}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
