"""One rank that makes groups of other members after destroy and init, over one store."""

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed

LIMIT = timedelta(seconds=20)


def check_sum(group: dist.ProcessGroup | None) -> None:
    tensor = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor, group=group)
    members = dist.get_process_group_ranks(group)
    assert tensor.unique().item() == sum(rank + 1 for rank in members)


def life(members: list[list[int]], *, local: bool, **where: object) -> None:
    dist.init_process_group("headrace", timeout=LIMIT, **where)
    for ranks in members:
        if local and dist.get_rank() not in ranks:
            continue
        group = dist.new_group(ranks, timeout=LIMIT, use_local_synchronization=local)
        if dist.get_rank() in ranks:
            check_sum(group)
    dist.barrier()
    check_no_secret(where["store"])
    dist.barrier()  # the next life writes another secret
    dist.destroy_process_group()


def check_no_secret(store: dist.Store) -> None:
    """Groups that are connected leave no secret in the store."""
    if hasattr(store, "list_keys"):
        keys = store.list_keys()
        arrivals = [key for key in keys if "/round/" in key and key.endswith("/0")]
        assert arrivals, keys
        for key in arrivals:
            _, _, text = json.loads(store.get(key))
            assert '["", ' in text or "address" in text, text


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    init, path = sys.argv[1:]
    port = int(os.environ["MASTER_PORT"])
    outer = dist.TCPStore("127.0.0.1", port, ranks, rank == 0, LIMIT)
    store = outer if init == "store" else dist.FileStore(path, ranks)
    where = {"store": store, "rank": rank, "world_size": ranks}
    # as in the case: rank 0 has made a group of the name that both make next
    for members in ([[0]], [[0, 1]], [[1], [1, 0]], [[0, 1], [1], [0]]):
        life(members, local=False, **where)
    # torch counts the groups that a rank made into these names: the counts have to be alike
    for members in ([[0], [1]], [[0], [1], [0, 1]], [[0, 1], [0, 1]]):
        life(members, local=True, **where)
    if rank == 0:  # its process holds the store
        outer.wait(["gone"], LIMIT)
    else:
        outer.set("gone", "")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
