"""One rank of a DDP job whose network changes under way; run by test_follow.py.

Arguments: backend, width of the network, the most steps, and what happens at which step: to the
first host's connections, both ways, ``pace:<step>:<bytes a second>``; to a rank,
``die:<step>:<rank>``; to all, ``leave:<step>:0`` (they end without a word to torch). With
HEADRACE_ADAPT_LOG, a job that was paced ends some steps after plans were changed for it, however
long that takes.
Rank 0 says every step's loss; all say a digest of their weights at the end.
"""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed

SLOW_HOST = 0
STEPS_AFTER = 10


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


def logged(log: Path) -> list[dict[str, Any]]:
    """Return the events that were written so far: complete lines."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def relieves(events: Sequence[dict[str, Any]]) -> bool:
    """Return whether a plan is in force that was made for the slow host, or after measuring."""
    ours, in_force = False, False
    for event in events:
        if event["event"] == "probe":
            ours = True
        elif event["event"] == "swap":
            ours = ours or any(name.startswith(f"host{SLOW_HOST}-") for name in event["network"])
        elif event["event"] == "in_force":
            in_force = ours
    return in_force


class End:
    """The number of steps, which rank 0 sets while the job runs; the same on all ranks.

    It is set before a step's collectives and read after them; once it is known, the store, which
    ends with rank 0, is no longer asked.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._steps: int | None = None
        self._store = dist.distributed_c10d._get_default_store()

    def set(self, steps: int) -> None:
        self._store.set("steps", str(steps))

    def reached(self, number: int) -> bool:
        if self._steps is None and number < self._most and self._store.check(["steps"]):
            self._steps = int(self._store.get("steps"))
        return number >= (self._most if self._steps is None else self._steps)


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
    log, end = os.environ.get("HEADRACE_ADAPT_LOG"), End(steps)
    number, paced, relieved = 0, False, False
    while not end.reached(number):
        if number in at and backend == "headrace":
            name, value = at[number]
            EVENTS[name](value)
            paced = paced or name == "pace"
        if rank == 0 and paced and log and not relieved and relieves(logged(Path(log))):
            relieved = True
            end.set(number + STEPS_AFTER)
        images = torch.randn(16, width, generator=source)
        labels = torch.randint(0, 10, (16,), generator=source)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(images), labels)
        loss.backward()
        optimizer.step()
        if rank == 0:
            says(step=number, loss=loss.item())
        number += 1
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:12]
    says(rank=rank, digest=digest, norm=flat.norm().item(), head=flat[:4].tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
