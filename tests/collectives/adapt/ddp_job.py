"""One rank of a DDP job whose network changes under way; run by test_follow.py.

Arguments: backend, width of the network, steps, and what happens at which step: to the first
host's connections, both ways, ``pace:<step>:<bytes a second>``; to a rank, ``die:<step>:<rank>``;
to all, ``leave:<step>:0`` (they end without a word to torch).
Rank 0 says every step's time; all say a digest of their weights at the end.
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed

SLOW_HOST = 0


def says(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def pace(bytes_per_s: int) -> None:
    """Hold all connections of the slow host to a rate, at both ends."""
    group = dist.group.WORLD
    assert group is not None
    rank = dist.get_rank()
    for peer in range(dist.get_world_size()):
        if peer != rank and SLOW_HOST in (peer, rank):
            group.executor.set_pacing(peer, bytes_per_s)  # pyright: ignore[reportAttributeAccessIssue]


def die(victim: int) -> None:
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)


EVENTS: dict[str, Callable[[int], object]] = {"pace": pace, "die": die, "leave": sys.exit}


def main(backend: str, width: int, steps: int, *events: str) -> None:
    torch.manual_seed(0)
    at = {int(step): (name, int(value)) for name, step, value in (e.split(":") for e in events)}
    dist.init_process_group(backend)
    rank = dist.get_rank()
    model = nn.Sequential(
        nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU(),
        nn.Linear(width, 10),
    )  # fmt: skip
    ddp = DistributedDataParallel(model, bucket_cap_mb=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    source = torch.Generator().manual_seed(rank)
    for number in range(steps):
        if number in at and backend == "headrace":
            name, value = at[number]
            EVENTS[name](value)
        began = time.monotonic()
        images = torch.randn(16, width, generator=source)
        labels = torch.randint(0, 10, (16,), generator=source)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(images), labels)
        loss.backward()
        optimizer.step()
        if rank == 0:
            says(step=number, s=round(time.monotonic() - began, 4), loss=loss.item())
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:12]
    says(rank=rank, digest=digest, norm=flat.norm().item(), head=flat[:4].tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
