"""One rank that makes a group, destroys it and makes it again over one store."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0, timedelta(seconds=60))
    for life in range(3):
        dist.init_process_group(
            "headrace", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
        )
        tensor = torch.full((1000,), float(rank + 1 + life))
        dist.all_reduce(tensor)
        assert tensor.unique().item() == sum(r + 1 + life for r in range(ranks))
        dist.monitored_barrier(timeout=timedelta(seconds=60))
        if rank == 0:
            try:
                dist.monitored_barrier(timeout=timedelta(seconds=0.3))
            except RuntimeError as error:
                assert "Rank 1 failed to pass monitoredBarrier" in str(error), error
            else:
                raise AssertionError("a barrier found rank 1, which was not there")
        dist.destroy_process_group()
    print("all lives went well", flush=True)
    if rank == 0:  # its process holds the store
        store.wait(["gone"], timedelta(seconds=60))
    else:
        store.set("gone", "")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
