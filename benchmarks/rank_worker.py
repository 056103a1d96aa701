"""One rank of a benchmark on real links: times collectives on one backend or several in turn.

Reads its task as JSON from the first argument and writes its times to
``<folder>/<rank>.json``. The task::

    {"rank", "ranks", "listen", "folder", "backends", "cases"}

`backends` maps a name to the plan book of a native executor, or to null: then the name is that of
a backend of torch. A case is {"collective", "bytes", "repeats", "warm_up"}. Every repetition of a
case is timed on every backend before the next one starts, so that disturbances of the machine
affect all alike. All results are compared with the expected values; a wrong one ends the benchmark.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headrace._native import DataType
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.plan.plan import Plan
from headrace.executor import Executor

Task = dict[str, Any]

SMALL_BYTES = 4096
"""Up to this size calls follow each other at once: the time is a caller's latency."""

TICK_S = 0.02


class Backend(Protocol):
    """Runs a collective in place on the slots of one float32 array."""

    def prepare(self, collective: str, data: np.ndarray) -> Callable[[], None]:
        """Return the call that runs `collective` on `data`."""
        ...

    def barrier(self) -> None:
        """Wait for all ranks."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


class Native:
    """The native executor, without torch; programs from the plan book."""

    def __init__(self, task: Task, name: str) -> None:
        self.rank, self.ranks = task["rank"], task["ranks"]
        self._book = PlanBook.load(task["backends"][name])
        self._executor = Executor(
            self.rank, self.ranks, host=task["listen"], secret=name, channels=2
        )
        folder = Path(task["folder"])
        publish(folder / f"{name}-{self.rank}.address", self._executor.address)
        self._executor.connect(
            [await_text(folder / f"{name}-{r}.address") for r in range(self.ranks)]
        )
        self._flag = np.zeros(1, np.float32)
        self._barrier = self.prepare("allreduce", self._flag)

    def prepare(self, collective: str, data: np.ndarray) -> Callable[[], None]:
        """Return the call that runs `collective` on `data`."""
        kind = Collective(collective)
        plan = _plan(self._book, kind, _size_of(kind, data))
        demand = plan.program.demand
        loaded = self._executor.load(plan.program, plan.proof)
        sides = 2 if kind is Collective.ALL_TO_ALL else 1
        block = data.size // (sides * demand.blocks)
        segments = [
            (data.ctypes.data + side * (data.nbytes // sides), block, demand.blocks, demand.chunks)
            for side in range(sides)
        ]
        call = self._executor.prepare(loaded, segments, dtype=DataType.float32)
        return lambda: self._executor.run(call)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._barrier()

    def close(self) -> None:
        """Leave the group."""
        self._executor.close()


class Torch:
    """torch.distributed over `name` ("gloo" or "headrace"); needs the default group."""

    def __init__(self, task: Task, name: str) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        self.rank, self.ranks = task["rank"], task["ranks"]
        self._torch, self._dist = torch, dist
        self._group = dist.group.WORLD if name == "gloo" else dist.new_group(backend=name)
        self._flag = torch.zeros(1)

    def prepare(self, collective: str, data: np.ndarray) -> Callable[[], None]:
        """Return the call that runs `collective` on `data`."""
        tensor, group = self._torch.from_numpy(data), self._group
        if collective == "allreduce":
            return lambda: self._dist.all_reduce(tensor, group=group)
        if collective == "allgather":
            own = tensor.chunk(self.ranks)[self.rank]
            # Input and output must not overlap; the copy is a thousandth of the time.
            return lambda: self._dist.all_gather_into_tensor(tensor, own.clone(), group=group)
        if collective == "all_to_all":
            before, after = tensor.chunk(2)
            return lambda: self._dist.all_to_all_single(after, before, group=group)
        raise SystemExit(f"the torch worker does not time {collective}")

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._dist.all_reduce(self._flag, group=self._group)

    def close(self) -> None:
        """Leave the group."""
        if self._dist.is_initialized():
            self._dist.destroy_process_group()


def publish(path: Path, text: str) -> None:
    """Write a file atomically."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text)
    os.replace(unfinished, path)


def await_text(path: Path, timeout_s: float = 60.0) -> str:
    """Return a file's text, once it is there."""
    end = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > end:
            raise SystemExit(f"{path.name} did not appear within {timeout_s:.0f} s")
        time.sleep(0.01)
    return path.read_text()


def _plan(book: PlanBook, collective: Collective, total_bytes: int) -> Plan:
    plan = book.choose(collective, total_bytes)
    if plan is None:
        raise SystemExit(f"the plan book has nothing for {collective} of {total_bytes} bytes")
    return plan


def _size_of(collective: Collective, data: np.ndarray) -> int:
    return data.nbytes // (2 if collective is Collective.ALL_TO_ALL else 1)


def fill(collective: Collective, data: np.ndarray, rank: int, ranks: int) -> None:
    """Put this rank's contribution into `data`: slot values are small integers."""
    demand = Demand(collective=collective, ranks=ranks)
    data[:] = -1.0
    slots = np.split(data, demand.slots)
    for slot, _, _ in demand.initial(rank):
        slots[slot][:] = rank + 1


def check(collective: Collective, data: np.ndarray, rank: int, ranks: int) -> None:
    """Compare `data` with the collective's result of `fill`."""
    demand = Demand(collective=collective, ranks=ranks)
    slots = np.split(data, demand.slots)
    for slot, _, mask in demand.final(rank):
        wanted = sum(r + 1 for r in range(ranks) if mask >> r & 1)
        if not (slots[slot] == wanted).all():
            raise SystemExit(f"{collective} at rank {rank}: slot {slot} is wrong")


def start_together() -> None:
    """Sleep to the next-but-one tick of the machine's clock: all ranks continue at the same moment.

    Ranks leave a barrier at different times, and a gather or a broadcast may then be half done
    before the last rank has called it.
    """
    tick = time.monotonic() // TICK_S + 2
    while (left_s := tick * TICK_S - time.monotonic()) > 0:
        time.sleep(left_s)


def time_case(
    case: Task, backends: dict[str, Backend], rank: int, ranks: int
) -> dict[str, list[tuple[float, float]]]:
    """(begin, end) of every repetition on every backend, in us of the machine's clock."""
    collective = Collective(case["collective"])
    sides = 2 if collective is Collective.ALL_TO_ALL else 1
    data = np.empty(sides * case["bytes"] // 4, np.float32)
    calls = {name: backend.prepare(collective, data) for name, backend in backends.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in backends}
    for repeat in range(case["warm_up"] + case["repeats"]):
        for name, backend in backends.items():
            fill(collective, data, rank, ranks)
            if case["bytes"] > SMALL_BYTES:
                backend.barrier()
                start_together()
            begin_us = time.monotonic() * 1e6
            calls[name]()
            end_us = time.monotonic() * 1e6
            check(collective, data, rank, ranks)
            if repeat >= case["warm_up"]:
                times[name].append((begin_us, end_us))
    return times


def main() -> None:
    """Time every case and write the result."""
    task: Task = json.loads(sys.argv[1])
    backends: dict[str, Backend] = {
        name: Torch(task, name) if book is None else Native(task, name)
        for name, book in task["backends"].items()
    }
    results = [time_case(case, backends, task["rank"], task["ranks"]) for case in task["cases"]]
    publish(Path(task["folder"]) / f"{task['rank']}.json", json.dumps(results))
    for backend in backends.values():
        backend.barrier()
    for backend in backends.values():
        backend.close()


if __name__ == "__main__":
    main()
