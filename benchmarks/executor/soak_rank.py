"""One rank of the soak: ``python -m ...soak_rank TASK``, started as torchrun starts ranks.

The task is JSON: {"collectives", "warm_up", "seed"}. Ranks draw the same calls and take part in
those of their groups, some at once, some left pending while others follow. Every rank writes in
lines of JSON its calls, the number of wrong results, and its process's resources before and after.
"""

import ctypes
import gc
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from benchmarks.executor.soak_calls import GROUPS, Call, block, draw, reduced, total, uneven
from benchmarks.jobs import emit

MOST_PENDING = 8
TAG_NUMBERS = 1000
_DELAY_SHARE, _DELAY_S = 0.03, 0.002
_PAUSE_SHARE, _PAUSE_S = 0.001, 0.02
_PROGRESS = 5000

Expected = list[tuple[torch.Tensor, torch.Tensor]]
"""Pairs of (result, expected)."""

Started = tuple[list[Any], Callable[[], Expected]]
"""Works to wait for, and the results to compare then."""

OPERATORS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def start(call: Call, me: int, group: Any) -> Started:
    """Begin a call as rank `me` of its group."""
    size, root = len(call.members), call.root
    peers = range(size)
    options: dict[str, Any] = {"group": group, "async_op": True}
    from_root = call.kind in ("broadcast", "scatter")
    rooted: dict[str, Any] = {**options, "group_src" if from_root else "group_dst": root}
    at_root = me == root
    match call.kind:
        case "all_reduce":
            data = block(call, me, 0)
            work = dist.all_reduce(data, OPERATORS[call.operator], **options)
            return [work], lambda: [(data, reduced(call, 0))]
        case "reduce":
            data = block(call, me, 0)
            work = dist.reduce(data, op=OPERATORS[call.operator], **rooted)
            return [work], lambda: [(data, reduced(call, 0))] if at_root else []
        case "reduce_scatter":
            data = total([block(call, me, other) for other in peers])
            out = torch.empty_like(data[: call.elements])
            work = dist.reduce_scatter_tensor(out, data, OPERATORS[call.operator], **options)
            return [work], lambda: [(out, reduced(call, me))]
        case "broadcast":
            data = block(call, me, 0)
            return [dist.broadcast(data, **rooted)], lambda: [(data, block(call, root, 0))]
        case "all_gather":
            own = block(call, me, 0)
            out = own.new_empty(size * call.elements)
            work = dist.all_gather_into_tensor(out, own, **options)
            return [work], lambda: [(out, total([block(call, other, 0) for other in peers]))]
        case "all_gather_uneven":
            blocks = [block(call, other, 0, uneven(call, other, 0)) for other in peers]
            outs = [torch.zeros_like(each) for each in blocks]
            work = dist.all_gather(outs, blocks[me], **options)
            return [work], lambda: list(zip(outs, blocks, strict=True))
        case "gather":
            own = block(call, me, 0)
            outs = [torch.empty_like(own) for _ in peers] if at_root else None
            work = dist.gather(own, outs, **rooted)
            return [work], lambda: [
                (out, block(call, other, 0)) for other, out in enumerate(outs or ())
            ]
        case "scatter":
            given = [block(call, me, other) for other in peers] if at_root else None
            out = torch.empty_like(block(call, root, me))
            return [dist.scatter(out, given, **rooted)], lambda: [(out, block(call, root, me))]
        case "all_to_all":
            data = total([block(call, me, other) for other in peers])
            out = torch.empty_like(data)
            work = dist.all_to_all_single(out, data, **options)
            return [work], lambda: [(out, total([block(call, other, me) for other in peers]))]
        case "all_to_all_uneven":
            return _start_uneven(call, me, options)
        case "send_receive":
            return _start_ring(call, me, group)
        case _:
            return [dist.barrier(**options)], list


def _start_uneven(call: Call, me: int, options: dict[str, Any]) -> Started:
    peers = range(len(call.members))
    splits = [uneven(call, me, other) for other in peers]
    arriving = [uneven(call, other, me) for other in peers]
    data = total([block(call, me, other, splits[other]) for other in peers])
    out = data.new_empty(sum(arriving))
    work = dist.all_to_all_single(out, data, arriving, splits, **options)
    return [work], lambda: [
        (out, total([block(call, other, me, arriving[other]) for other in peers]))
    ]


def _start_ring(call: Call, me: int, group: Any) -> Started:
    """Send to the next rank of the group and receive from the one before."""
    size, tag = len(call.members), call.number % TAG_NUMBERS
    before, after = (me - 1) % size, (me + 1) % size
    data = block(call, me, after)
    out = torch.empty_like(data)
    works = [
        dist.irecv(out, group=group, group_src=before, tag=tag),
        dist.isend(data, group=group, group_dst=after, tag=tag),
    ]
    return works, lambda: [(out, block(call, before, me))]


class _HeapStatistics(ctypes.Structure):
    """glibc's heap statistics; see mallinfo(3)."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def held() -> dict[str, int]:
    """Return the resources of this process.

    Resident bytes, of these its own; bytes of the heap that are in use; descriptors; threads.
    """
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)  # memory that the allocator caches is no leak
    libc.mallinfo2.restype = _HeapStatistics
    heap = libc.mallinfo2()
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    kib = {line[0]: int(line[1]) for line in lines if line[0].startswith(("VmRSS", "RssAnon"))}
    return {
        "resident_bytes": kib["VmRSS:"] << 10,
        "anonymous_bytes": kib["RssAnon:"] << 10,
        "in_use_bytes": heap.uordblks + heap.hblkhd,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


class Soak:
    """One rank's progress and pending calls."""

    def __init__(self, seed: int) -> None:
        self.rank = dist.get_rank()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._groups: list[Any] = [
            dist.new_group(list(members), backend="headrace") for members in GROUPS
        ]
        self._calls = random.Random(seed)
        self._delays = random.Random(f"{seed}/{self.rank}")
        self._pending: list[tuple[Call, Started]] = []

    def run(self, first: int, last: int) -> None:
        """Make the calls of these numbers."""
        for number in range(first, last):
            call = draw(self._calls, number)
            if number % _PROGRESS == 0:
                emit("progress", number=number, wrong=len(self.wrong))
            if self.rank in call.members:
                self._delay()
                me = dist.get_group_rank(self._groups[call.group], self.rank)
                self._pending.append((call, start(call, me, self._groups[call.group])))
                self.counts[call.kind] += 1
                if not call.pending or len(self._pending) >= MOST_PENDING:
                    self.complete()
        self.complete()

    def complete(self) -> None:
        """Wait for all pending calls, and check them."""
        for call, (works, results) in self._pending:
            for work in works:
                work.wait()
            if not all(torch.equal(found, expected) for found, expected in results()):
                self.wrong.append(str(call))
        self._pending.clear()

    def _delay(self) -> None:
        chance = self._delays.random()
        if chance < _PAUSE_SHARE:
            time.sleep(self._delays.uniform(0, _PAUSE_S))
        elif chance < _DELAY_SHARE:
            time.sleep(self._delays.uniform(0, _DELAY_S))


def main() -> None:
    """Warm up, and run between two readings of the resources."""
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("headrace")
    soak = Soak(task["seed"])
    soak.run(0, task["warm_up"])
    dist.barrier()
    before = held()
    began = time.monotonic()
    soak.run(task["warm_up"], task["warm_up"] + task["collectives"])
    dist.barrier()
    took = time.monotonic() - began
    after = held()
    emit(
        "done",
        counts=soak.counts,
        wrong=len(soak.wrong),
        first_wrong=soak.wrong[:3],
        before=before,
        after=after,
        took_s=took,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
