"""A rank of a job by torch's own means: reduces, sends, and says what for connections it had."""

import sys

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("headrace")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    values = torch.full((100_000,), float(rank))
    dist.all_reduce(values)
    assert (values == ranks * (ranks - 1) / 2).all()
    if rank == 0:
        dist.send(values, 1)
    elif rank == 1:
        got = torch.empty_like(values)
        dist.recv(got, 0)
        assert (got == values).all()
    dist.barrier()
    dist.destroy_process_group()
    print("done")


if __name__ == "__main__":
    sys.exit(main())
