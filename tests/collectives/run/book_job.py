"""One rank, under torchrun, of a job with plan books; run by test_plan_book.py.

Arguments: a book that fits the job, one that differs from it, one for more ranks.
"""

import logging
import os
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed


def main(fitting: str, other: str, larger: str) -> None:
    rank = int(os.environ["RANK"])
    limit = timedelta(seconds=60)
    os.environ["HEADRACE_PLAN_BOOK"] = fitting
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format=f"[{rank}] %(message)s")
    dist.init_process_group("headrace", timeout=limit)
    tensor = torch.ones(1 << 18)
    dist.all_reduce(tensor)
    assert (tensor == dist.get_world_size()).all()

    print(f"[{rank}] one rank of the job:", flush=True)
    alone, _ = dist.new_subgroups(1, timeout=limit)
    dist.all_reduce(tensor, group=alone)

    os.environ["HEADRACE_PLAN_BOOK"] = other if rank == 1 else fitting
    try:
        dist.new_group(timeout=limit)
    except ValueError as error:
        print(f"[{rank}] ERROR {error}", flush=True)

    os.environ["HEADRACE_PLAN_BOOK"] = larger
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        group = dist.new_group(timeout=limit)
    for warning in seen:
        print(f"[{rank}] WARNING {warning.message}", flush=True)
    dist.all_reduce(tensor, group=group)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
