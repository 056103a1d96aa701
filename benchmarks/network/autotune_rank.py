"""One rank of a job that adapts, and of static jobs beside it: ``python -m ...autotune_rank TASK``.

The task is JSON: {"buckets", "compute_s", "books", "steps", "static"}. It takes `steps` steps on
the plan book "adaptive", with adaptation on. Before step n, where `static` has n, it takes a few
on every other book that `static` names, on groups of that book. Rank 0 reports the end of every
step: the process that started the ranks changes the network meanwhile.
"""

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.jobs import emit
from benchmarks.network.loop import Loop

WARM_UP = 2
STATIC_STEPS = 6
LAST_STEPS = 8
"""Steps at the end over which the bytes of every rank are counted."""


def main() -> None:
    """Run."""
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    world, groups = _groups(task["books"])
    loop = Loop(task["buckets"], task["compute_s"])
    held = {name: Loop(task["buckets"], task["compute_s"]) for name in groups}
    first = dist.get_rank() == 0
    dist.barrier()
    finished = world.executor.finished()
    sent = 0
    for number in range(task["steps"]):
        if number == task["steps"] - LAST_STEPS:
            sent = _sent(world)
        for book in task["static"].get(str(number), ()):
            found = _static(held[book], groups[book])
            if first:
                emit("static", before=number, book=book, **found)
        began = time.perf_counter()
        epochs = loop.step(number, world)
        ms = (time.perf_counter() - began) * 1e3
        if first:
            emit("step", number=number, ms=ms, epochs=epochs, at=time.time())
    emit(
        "done",
        calls=loop.calls,
        finished=world.executor.finished() - finished,
        wrong=loop.wrong + sum(each.wrong for each in held.values()),
        changed=loop.changed + sum(each.changed for each in held.values()),
        digests=loop.digests(),
        sent=_sent(world) - sent,
    )
    dist.barrier()
    dist.destroy_process_group()


def _groups(books: dict[str, str]) -> tuple[Any, dict[str, Any]]:
    """Return the whole job's group, which adapts, and one for every other book, which does not."""
    os.environ.update(HEADRACE_PLAN_BOOK=books["adaptive"], HEADRACE_ADAPT="on")
    dist.init_process_group("headrace")
    os.environ["HEADRACE_ADAPT"] = "off"
    groups: dict[str, Any] = {}
    for name, path in books.items():
        if name != "adaptive":
            os.environ["HEADRACE_PLAN_BOOK"] = path
            groups[name] = dist.new_group(backend="headrace")
    return dist.group.WORLD, groups


def _static(loop: Loop, group: Any) -> dict[str, Any]:
    """Take a few steps by a static plan; returns their times, and the bytes that this rank sent."""
    times: list[float] = []
    sent = _sent(group)
    for number in range(WARM_UP + STATIC_STEPS):
        began = time.perf_counter()
        loop.step(number, group)
        times.append((time.perf_counter() - began) * 1e3)
    return {"ms": times[WARM_UP:], "sent": _sent(group) - sent}


def _sent(group: Any) -> int:
    return sum(group.executor.counters()["sent_bytes"])


if __name__ == "__main__":
    main()
