"""One rank of test_descriptors: groups until the limit of open files."""

import os
import resource
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.waiting import ENDLESS_S

GROUPS = 400


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def main() -> None:
    short = dist_rank() in [int(rank) for rank in sys.argv[1].split(",")]
    dist.init_process_group("headrace", timeout=timedelta(seconds=ENDLESS_S))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if short:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 80, hard))
    before = open_files()
    groups: list[dist.ProcessGroup] = []
    try:
        for _ in range(GROUPS):
            groups.append(dist.new_group())
    except RuntimeError as error:
        assert "ulimit -n" in str(error), error
    assert 1 <= len(groups) < GROUPS, len(groups)
    for group in (None, *groups):  # those made before go on
        ones = torch.ones(3)
        dist.all_reduce(ones, group=group)
        assert ones.tolist() == [dist.get_world_size()] * 3
    for group in groups:
        dist.destroy_process_group(group)
    assert open_files() <= before, (open_files(), before)
    again = dist.new_group()
    dist.barrier(again)
    dist.destroy_process_group()
    print("ok")


def dist_rank() -> int:
    return int(os.environ["RANK"])


if __name__ == "__main__":
    main()
