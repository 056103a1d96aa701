"""One rank of a job that brings no plan book; run by test_automatic.py on a testbed."""

import dataclasses
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed
from headrace.collectives.run import bootstrap as automatic


def main() -> None:
    automatic.EFFORT = dataclasses.replace(
        automatic.EFFORT,
        budget_s=float(sys.argv[1]),
        tournament_us=5000,
        crowd_us=5000,
        quiet_us=8000,
        sharing_us=8000,
    )
    dist.init_process_group("headrace", timeout=timedelta(seconds=60))
    tensor = torch.full((1 << 16,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    ranks = dist.get_world_size()
    assert (tensor == ranks * (ranks + 1) / 2).all()
    group = dist.distributed_c10d._get_default_group()
    choice = group._caller._chooser.choose("allreduce", tensor.nbytes)
    print(f"rank {os.environ['RANK']} uses {choice.program.digest} by {choice.origin}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
