"""An interpreter of MSCCL++ execution plans, thread by thread, that shares no code with headrace.

After the executor's kernel (microsoft/mscclpp, ``execution_kernel.hpp``): every thread of a block
executes the operations in order, and only ``nop`` synchronizes it with the other threads.

- ``copy``, ``re``, ``put``, ``rre`` and ``rres``: element i of the range is that of thread i
  modulo the number of threads.
- ``signal``, ``wait``, ``sem_acquire`` and ``sem_release``: thread k does it for the k-th channel
  or semaphore that the operation names; threads beyond go on at once.

Threads run by random priorities that change now and then, so that some lag far behind others;
memory is sequentially consistent, which is more than GPUs promise. A plan misbehaves if a result
is wrong, threads wait for ever, or signals are left over. Elements stand for bytes: a chunk has
a few, in such a number that neighbouring operations divide them differently.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

THREADS = 3
"""Of a block, or as many as one operation names channels or semaphores."""
ELEMENTS = 4
"""Of a chunk; no multiple of `THREADS`."""

_CHANGES = 4
"""Changes of priority in a run, about."""

Value = tuple[int, frozenset[int]] | None
Cell = tuple[str, int]
"""Buffer and element."""


class Plan:
    """One plan, to be run as often as wanted.

    Parameters
    ----------
    text : the JSON.
    root : of a rooted collective.
    """

    def __init__(self, text: str, root: int = 0) -> None:
        plan = json.loads(text)
        self.gpus: list[dict[str, Any]] = plan["gpus"]
        self.collective: str = plan["collective"]
        self.in_place: bool = plan["inplace"]
        self.root, self.ranks = root, len(self.gpus)
        self.partner = _partners(self.gpus)
        sizes = (self.gpus[root][f"{name}_chunks"] for name in ("input", "output"))
        self.chunks = min(sizes)  # a block's: the larger one holds a block of every rank
        if self.collective == "alltoall":
            self.chunks //= self.ranks
        self.blocks = [
            (rank, block["ops"], _channels(block), _remote(self.gpus[rank], block))
            for rank in range(self.ranks)
            for block in self.gpus[rank]["threadblocks"]
        ]
        named = (op.get("semaphore_ids", ()) for _, ops, *_ in self.blocks for op in ops)
        self.threads = max(THREADS, *map(len, named), 0)

    def misbehaves(self, runs: int, seed: int = 0) -> str:
        """Return the problem of the first bad one of `runs` runs, or ''."""
        for run in range(runs):
            if problem := _Run(self, random.Random(f"{seed} {run}")).problem():
                return f"run {run}: {problem}"
        return ""

    def cell(self, rank: int, buffer: str, element: int) -> Cell:
        """Return one name for each cell of memory: in place, input and output overlap."""
        if not self.in_place or buffer == "s":
            return buffer, element
        own = rank * self.chunks * ELEMENTS
        at_root = rank == self.root
        match self.collective:
            case "allgather":
                return ("o", element + own) if buffer == "i" else (buffer, element)
            case "gather" if at_root:
                return ("o", element + own) if buffer == "i" else (buffer, element)
            case "reducescatter":
                return ("i", element + own) if buffer == "o" else (buffer, element)
            case "scatter" if at_root:
                return ("i", element + own) if buffer == "o" else (buffer, element)
            case "gather" | "scatter":
                return buffer, element
            case _:
                return "i", element

    def initial(self, rank: int) -> Iterator[tuple[Cell, Value]]:
        """Yield what the caller put into the input of `rank`."""
        if self.collective in ("broadcast", "scatter") and rank != self.root:
            return
        wide = self.collective in ("reducescatter", "scatter", "alltoall")
        for k in range(self.chunks * ELEMENTS * (self.ranks if wide else 1)):
            item = k
            if self.collective in ("allgather", "gather"):
                item += rank * self.chunks * ELEMENTS
            yield self.cell(rank, "i", k), (item, frozenset({rank}))

    def final(self, rank: int) -> Iterator[tuple[Cell, Value]]:
        """Yield what the output of `rank` has to hold in the end."""
        if self.collective in ("reduce", "gather") and rank != self.root:
            return
        block, everyone = self.chunks * ELEMENTS, frozenset(range(self.ranks))
        wide = self.collective in ("allgather", "gather", "alltoall")
        for k in range(block * (self.ranks if wide else 1)):
            value: Value
            match self.collective:
                case "allreduce" | "reduce":
                    value = k, everyone
                case "reducescatter":
                    value = rank * block + k, everyone
                case "broadcast":
                    value = k, frozenset({self.root})
                case "scatter":
                    value = rank * block + k, frozenset({self.root})
                case "allgather" | "gather":
                    value = k, frozenset({k // block})
                case _:
                    value = rank * block + k % block, frozenset({k // block})
            yield self.cell(rank, "o", k), value


class _Run:
    """One execution; a thread is its block's number and its own, at an operation and element."""

    def __init__(self, plan: Plan, rng: random.Random) -> None:
        self.plan, self.rng = plan, rng
        self.memory: list[dict[Cell, Value]] = [dict(plan.initial(r)) for r in range(plan.ranks)]
        self.signals = dict.fromkeys(plan.partner, 0)
        self.semaphores = [[s["init_value"] for s in gpu["semaphores"]] for gpu in plan.gpus]
        self.at = [[[0, 0] for _ in range(plan.threads)] for _ in plan.blocks]

    def problem(self) -> str:
        threads = [
            (block, t) for block in range(len(self.plan.blocks)) for t in range(self.plan.threads)
        ]
        self.rng.shuffle(threads)
        often = _CHANGES / (
            1 + sum(len(ops) for _, ops, *_ in self.plan.blocks) * self.plan.threads
        )
        while threads:
            thread = next((thread for thread in threads if self._advance(*thread)), None)
            if thread is None:
                return self._stuck(threads)
            block, t = thread
            at, end = self.at[block][t], len(self.plan.blocks[block][1])
            preempted = False
            while at[0] < end and not preempted and self._advance(block, t):
                preempted = self.rng.random() < often
            if at[0] == end:
                threads.remove(thread)
            if preempted:
                self.rng.shuffle(threads)
        if any(self.signals.values()) or any(map(any, self.semaphores)):
            return "signals or semaphores are left over"
        for rank in range(self.plan.ranks):
            for cell, wanted in self.plan.final(rank):
                if self.memory[rank].get(cell) != wanted:
                    return f"gpu {rank}: {cell} holds {self.memory[rank].get(cell)}, not {wanted}"
        return ""

    def _stuck(self, threads: list[tuple[int, int]]) -> str:
        block, t = threads[0]
        rank, ops, *_ = self.plan.blocks[block]
        return f"stuck at gpu {rank}, thread {t}: {ops[self.at[block][t][0]]}"

    def _advance(self, block: int, t: int) -> bool:
        """Move one element in a thread, or complete one operation; return False if it waits."""
        rank, ops, channels, remote = self.plan.blocks[block]
        at = self.at[block][t]
        if at[0] == len(ops):
            return True  # an empty block
        op = ops[at[0]]
        name = op["name"]
        if name == "nop":
            if any(other[0] < at[0] for other in self.at[block]):
                return False
        elif name in ("signal", "wait"):
            if t < len(op["channel_ids"]):
                here = rank, channels[op["channel_ids"][t]]
                if name == "signal":
                    self.signals[self.plan.partner[here]] += 1
                elif not self.signals[here]:
                    return False
                else:
                    self.signals[here] -= 1
        elif name in ("sem_acquire", "sem_release"):
            if t < len(op["semaphore_ids"]):
                number, own = op["semaphore_ids"][t], self.semaphores[rank]
                if name == "sem_acquire" and not own[number]:
                    return False
                own[number] += 1 if name == "sem_release" else -1
        else:
            element = at[1] * self.plan.threads + t
            if element < op["src_buff"][0]["size"] * ELEMENTS:
                self._move(rank, op, remote, element)
                at[1] += 1
                return True
        at[0], at[1] = at[0] + 1, 0
        return True

    def _move(self, rank: int, op: dict[str, Any], remote: list[Any], element: int) -> None:
        value, *others = (
            self.memory[owner].get(cell)
            for owner, cell in (self._place(rank, b, remote, element) for b in op["src_buff"])
        )
        for other in others:
            alike = value is not None and other is not None and value[0] == other[0]
            if value is None or other is None or not alike or value[1] & other[1]:
                value = None
            else:
                value = value[0], value[1] | other[1]
        for buff in op["dst_buff"]:
            owner, cell = self._place(rank, buff, remote, element)
            self.memory[owner][cell] = value

    def _place(
        self, rank: int, buff: dict[str, Any], remote: list[Any], element: int
    ) -> tuple[int, Cell]:
        owner, kind = remote[buff["buffer_id"]] if "buffer_id" in buff else (rank, buff["type"])
        return owner, self.plan.cell(owner, kind, buff["index"] * ELEMENTS + element)


def without_nop(text: str, gpu: int, threadblock: int, op: int) -> str:
    """Return the plan without one of its operations, which has to be a nop."""
    plan = json.loads(text)
    removed = plan["gpus"][gpu]["threadblocks"][threadblock]["ops"].pop(op)
    assert removed["name"] == "nop"
    return json.dumps(plan)


def nops(text: str) -> list[tuple[int, int, int]]:
    """Return (gpu, threadblock, operation) of every nop of the plan."""
    return [
        (rank, number, k)
        for rank, gpu in enumerate(json.loads(text)["gpus"])
        for number, block in enumerate(gpu["threadblocks"])
        for k, op in enumerate(block["ops"])
        if op["name"] == "nop"
    ]


def _channels(block: dict[str, Any]) -> list[int]:
    return [number for entry in block["channels"] for number in entry["channel_ids"]]


def _remote(gpu: dict[str, Any], block: dict[str, Any]) -> list[tuple[int, str]]:
    numbers = [k for entry in block["remote_buffer_refs"] for k in entry["remote_buffer_ids"]]
    return [(gpu["remote_buffers"][k]["rank"], gpu["remote_buffers"][k]["type"]) for k in numbers]


def _partners(gpus: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[int, int]]:
    """Pair the k-th channel from one GPU to another with the k-th back."""
    peers = [[p for channel in gpu["channels"] for p in channel["connected_to"]] for gpu in gpus]
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, of in enumerate(peers):
        for number, peer in enumerate(of):
            back = [k for k, other in enumerate(peers[peer]) if other == rank]
            found[rank, number] = peer, back[of[:number].count(peer)]
    return found
