"""One rank of a job that goes wrong; run by test_faults.py. Argument: how it goes wrong."""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed
from headrace.collectives.run.torch.extensions import aggregate, all_gather_variable
from tests.waiting import HANG_S, STALL_S

VICTIM = 1


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def says(*words: object) -> None:
    print(*words, flush=True)


def fails(label: str, call: Callable[[], object]) -> None:
    started = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        says(f"{label} failed: {error}")
    else:
        says(f"{label} went well after {time.monotonic() - started:.1f} s")


def reduce_until(end_s: float) -> None:
    big = torch.ones(2_000_000)
    end = time.monotonic() + end_s
    while time.monotonic() < end:
        dist.all_reduce(big)


def killed() -> None:
    """Every way of waiting for the victim, at the moment when it is killed."""
    members = list(range(dist.get_world_size()))
    waiting, watched, silent = (dist.new_group(members) for _ in range(3))
    if dist.get_rank() == VICTIM:
        says(f"ready {os.getpid()}")
        reduce_until(60)
    work = dist.all_reduce(torch.ones(100), group=waiting, async_op=True)
    future = dist.all_reduce(torch.ones(100), group=watched, async_op=True).get_future()
    message = dist.irecv(torch.ones(1000), VICTIM, group=silent)
    says(f"ready {os.getpid()}")
    fails("a synchronous call", lambda: reduce_until(60))
    fails("wait", work.wait)
    fails("future", future.wait)
    fails("message", message.wait)
    fails("a later call", lambda: dist.all_reduce(torch.ones(1)))


def training() -> None:
    """Killed while DDP's reducer waits for a bucket."""
    model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(4)])
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.1)

    def train() -> None:
        while True:
            parallel(torch.ones(2, 300)).sum().backward()

    says(f"ready {os.getpid()}")
    fails("training", train)


def disagreeing() -> None:
    """The victim is alive, but does not come or does something else."""
    members = list(range(dist.get_world_size()))
    impatient = dist.new_group(members, timeout=timedelta(seconds=STALL_S))
    odd = dist.new_group(members)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() != VICTIM:
        fails("waiting", lambda: dist.all_reduce(torch.ones(1), group=impatient))
        store.set(f"waited {dist.get_rank()}", "yes")
    else:
        store.wait(["waited 0", "waited 2"])
    size = 5 if dist.get_rank() == VICTIM else 6
    fails("differing", lambda: dist.all_reduce(torch.ones(size), group=odd))
    dist.all_reduce(torch.ones(1))  # another group is none the worse for it


def extended() -> None:
    """Aggregates under way whose function raises at the victim, is its end, or that differ."""
    members = list(range(dist.get_world_size()))
    raising, odd, dying = (dist.new_group(members) for _ in range(3))
    victim, begun = dist.get_rank() == VICTIM, threading.Event()

    def raises(rows: torch.Tensor) -> torch.Tensor:
        begun.wait()
        if victim:
            raise RuntimeError("no votes")
        return rows.sum(0)

    def dies(rows: torch.Tensor) -> torch.Tensor:
        begun.wait()
        if victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return rows.sum(0)

    works = [aggregate(torch.ones(100), raises, raising, async_op=True) for _ in range(3)]
    dist.barrier()  # all ranks have begun all of them
    begun.set()
    for work in works:
        fails("raising", work.wait)
    fails("later", lambda: dist.all_reduce(torch.ones(1), group=raising))
    if victim:
        fails("swapped", lambda: dist.all_reduce(torch.ones(100), group=odd))
    else:
        ones = torch.ones(100)
        fails("swapped", lambda: aggregate(ones, raises, odd, async_op=True).wait())
    gathered = all_gather_variable(torch.ones(dist.get_rank()), 9, dying, async_op=True)
    gathered.wait()
    begun.clear()
    works = [aggregate(torch.ones(100), dies, dying, async_op=True) for _ in range(2)]
    dist.barrier()  # all ranks have begun all of them
    begun.set()
    for work in works:
        fails("dying", work.get_future().wait)


def late() -> None:
    """The victim begins the same calls after the others have given up."""
    members = list(range(dist.get_world_size()))
    group = dist.new_group(members, timeout=timedelta(seconds=STALL_S))
    if dist.get_rank() == VICTIM:
        dist.distributed_c10d._get_default_store().wait(["gave up 0", "gave up 2"])
    fails("reducing", lambda: dist.all_reduce(torch.ones(4), group=group))
    fails("a later call", lambda: dist.all_reduce(torch.ones(4), group=group))
    dist.distributed_c10d._get_default_store().set(f"gave up {dist.get_rank()}", "yes")
    waiting_alone()


def waiting_alone() -> None:
    """A wait and a barrier that give up earlier than the call: both go well later."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == VICTIM:
        store.wait(["waited 0", "waited 2"])
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    if dist.get_rank() != VICTIM:
        fails("a short wait", lambda: work.wait(timedelta(seconds=0.2)))
        short = timedelta(seconds=0.2)
        fails("a short barrier", lambda: dist.monitored_barrier(timeout=short, wait_all_ranks=True))
        store.set(f"waited {dist.get_rank()}", "yes")
    work.wait()
    says(f"then {tensor.tolist()}")


def abandoned() -> None:
    """Leave the group undestroyed; the interpreter must end all the same."""
    for _ in range(50):
        dist.all_reduce(torch.ones(100_000), async_op=True)
    dist.irecv(torch.ones(1), (dist.get_rank() + 1) % dist.get_world_size())
    sys.exit()


def main(how: str) -> None:
    dist.init_process_group("headrace", timeout=timedelta(seconds=HANG_S))
    with_one_group = descriptors()
    {f.__name__: f for f in (killed, training, disagreeing, extended, late, abandoned)}[how]()
    dist.destroy_process_group()
    gc.collect()  # errors' tracebacks keep what failed to connect
    threads = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    says(f"descriptors {with_one_group} then {descriptors()}, threads {threads}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
