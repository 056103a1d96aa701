"""Threadblocks as a program for the verifier.

Every threadblock becomes a send, a receive and a local lane; dependencies keep its steps in order.
A fused step becomes several steps of the program.

The program's demand is an `Imported`: its slots are the caller's buffers as they are, all chunks
equally large, and headrace's own buffer conventions need not hold.
"""

from dataclasses import dataclass

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.export.algorithm import (
    Algorithm,
    At,
    BlockStep,
    Gpu,
    Kind,
    Location,
    Threadblock,
)
from headrace.collectives.export.buffers import Layout
from headrace.collectives.export.connections import Connections
from headrace.collectives.program import (
    DEPENDENCY_COLUMNS,
    LANE_COLUMNS,
    STEP_COLUMNS,
    Direction,
    Op,
    Program,
)

CONNECTION_SLOTS = 8
"""Slots of a connection (NCCL_STEPS)."""
CALL_SLOTS = {"Simple": 4, "LL": 1, "LL128": 1}
"""Slots that one call of a primitive takes, by protocol; Simple: two slices of two."""

CALL_BYTES = {
    "Simple": (1 << 22) // CONNECTION_SLOTS * CALL_SLOTS["Simple"],
    "LL": 256 * 8 * 16 * CALL_SLOTS["LL"] // 2,
    "LL128": 256 * 28 * 8 * CALL_SLOTS["LL128"] // 8 * 7,
}
"""Payload of one call of a primitive, by protocol, with the runtimes' default buffers.

The smaller of NCCL's and RCCL's (device.h: threads, lines or elements a thread, bytes of each, by
slot; half of LL's and an eighth of LL128's are flags). NCCL_BUFFSIZE and others change it."""

MOST_CALL_CHUNKS = 71
"""Chunks of one call at most (MSCCL_MAX_COUNT - 1)."""

Key = tuple[int, int, int, int]
SlotValue = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported(Demand):
    """Conditions of a collective, in terms of the buffers that its caller passes.

    Attributes
    ----------
    slot_count : slots at every rank, all buffers one after another.
    held, needed : by rank, (slot, item, mask) before and after.
    """

    slot_count: int
    held: tuple[tuple[SlotValue, ...], ...]
    needed: tuple[tuple[SlotValue, ...], ...]

    @property
    def slots(self) -> int:
        """Number of slots at every rank."""
        return self.slot_count

    @property
    def buffers(self) -> tuple[int, ...]:
        """One buffer: bounds of the caller's buffers have been checked already."""
        return (self.slot_count,)

    def initial(self, rank: int) -> list[SlotValue]:
        """Return (slot, item, mask) for every slot that holds a value before the call."""
        return list(self.held[rank])

    def final(self, rank: int) -> list[SlotValue]:
        """Return (slot, item, mask) for every slot of the postcondition."""
        return list(self.needed[rank])


def chunks_held(protocol: str) -> int:
    """Return the number of chunks that a connection holds for certain.

    A step of several chunks is at worst, where chunks are large, one call for each.
    """
    return CONNECTION_SLOTS // CALL_SLOTS[protocol]


def chunks_per_call(algorithm: Algorithm) -> int:
    """Return how many chunks one call moves at every size that selects the algorithm.

    As the runtimes compute it for the largest of these sizes; 1 where `max_bytes` is no limit.
    """
    if not algorithm.max_bytes:
        return 1
    chunk_bytes = -(-algorithm.max_bytes // algorithm.chunks_per_loop)
    return min(max(1, CALL_BYTES[algorithm.protocol] // chunk_bytes), MOST_CALL_CHUNKS)


class Regions:
    """Slots of one GPU's buffers: input, output, scratch, then temporaries of steps."""

    def __init__(self, connections: Connections, layout: Layout) -> None:
        self.layout = layout
        gpus = connections.algorithm.gpus
        sizes = [layout.sizes(gpu.id) for gpu in gpus]
        ends = [_ends(gpu) for gpu in gpus]
        self.output = max((max(s[0], e["i"]) for s, e in zip(sizes, ends, strict=True)), default=0)
        self.scratch = self.output + max(
            (max(s[1], e["o"]) for s, e in zip(sizes, ends, strict=True)), default=0
        )
        self.own = self.scratch + max((e["s"] for e in ends), default=0)

    def slot(self, rank: int, location: Location) -> int:
        """Return the slot of `location`, one for all names of the same memory."""
        buffer, offset = self.layout.same_memory(rank, location)
        return {"i": 0, "o": self.output, "s": self.scratch}[buffer] + offset

    def name(self, slot: int) -> str:
        """Return the location of `slot` in words."""
        for buffer, start in (("s", self.scratch), ("o", self.output), ("i", 0)):
            if slot >= self.own:
                return "the step's own buffer"
            if slot >= start:
                return f"{buffer}[{slot - start}]"
        raise AssertionError


def _ends(gpu: Gpu) -> dict[str, int]:
    """Return by buffer the end of the chunks that the steps of `gpu` touch."""
    ends = {"i": 0, "o": 0, "s": 0}
    for threadblock in gpu.threadblocks:
        for step in threadblock.steps:
            for buffer, offset in (step.src, step.dst):
                ends[buffer] = max(ends[buffer], offset + step.count)
    return ends


class Assembly:
    """Builder of a program; keeps for each of its steps the threadblock's step of origin.

    Parameters
    ----------
    held : calls that every connection holds: a send ends once its last call is stored there.
        With 0 a send ends with its receive.
    per_call : chunks that one call moves at most.
    """

    def __init__(
        self, connections: Connections, layout: Layout, *, held: int, per_call: int = 1
    ) -> None:
        self.connections, self.layout, self.held = connections, layout, held
        self.per_call = per_call
        self.regions = Regions(connections, layout)
        self.lanes: dict[Key, list[int]] = {}
        self.rows: list[tuple[int, int, int, int]] = []
        self.key: list[Key] = []
        self.edges: list[tuple[int, int]] = []
        self.origin: list[At] = []
        first: dict[At, int] = {}
        last: dict[At, int] = {}
        self.top = self.regions.own
        for gpu in connections.algorithm.gpus:
            base = self.regions.own
            for threadblock in gpu.threadblocks:
                base = self._threadblock(gpu, threadblock, base, first, last)
            self.top = max(self.top, base)
        for at, waits in connections.waits.items():
            self.edges += [(first[at], last[on]) for on in waits if first[at] != last[on]]

    def program(self, collective: Collective) -> Program:
        """Return the program; `collective` decides whether results must agree bit by bit.

        A reduce demands no more than `Imported` does; an allreduce that results be equal.
        """
        keys = sorted(self.lanes)
        order = [sub for key in keys for sub in self.lanes[key]]
        number = {sub: k for k, sub in enumerate(order)}
        lane_of = [lane for lane, key in enumerate(keys) for _ in self.lanes[key]]
        messages = self._messages()
        rows = [
            (lane, *self.rows[sub], messages[sub]) for lane, sub in zip(lane_of, order, strict=True)
        ]
        edges = sorted({(number[a], number[b]) for a, b in self.edges})
        return Program(
            demand=self._demand(collective),
            scratch_slots=0,
            lanes=_columns(keys, LANE_COLUMNS),
            steps=_columns(rows, STEP_COLUMNS),
            dependencies=_columns(edges, DEPENDENCY_COLUMNS),
        )

    def origin_of(self, key: Key, position: int) -> At | None:
        """Return the threadblock's step that step `position` of lane `key` is part of."""
        lane = self.lanes.get(key, ())
        return self.origin[lane[position]] if position < len(lane) else None

    def _demand(self, collective: Collective) -> Imported:
        layout, regions = self.layout, self.regions
        ranks = range(layout.demand.ranks)

        def values(of: str, rank: int) -> tuple[SlotValue, ...]:
            located = layout.held(rank) if of == "held" else layout.wanted(rank)
            return tuple(
                (regions.slot(rank, location), item, mask) for location, item, mask in located
            )

        return Imported(
            collective=collective,
            ranks=layout.demand.ranks,
            root=layout.demand.root,
            slot_count=max(self.top, 1),
            held=tuple(values("held", rank) for rank in ranks),
            needed=tuple(values("wanted", rank) for rank in ranks),
        )

    def _messages(self) -> list[int]:
        """Number messages so that both ends agree and numbers ascend in every lane."""
        messages = [0] * len(self.rows)
        start = 0
        for key, lane in sorted(self.lanes.items()):
            rank, direction, peer, channel = key
            if direction == Direction.RECV:
                continue
            ends = [lane]
            if direction == Direction.SEND:
                ends.append(self.lanes.get((peer, int(Direction.RECV), rank, channel), []))
            for end in ends:
                for k, sub in enumerate(end):
                    messages[sub] = start + k
            start += max(map(len, ends))
        return messages

    def _threadblock(
        self, gpu: Gpu, tb: Threadblock, base: int, first: dict[At, int], last: dict[At, int]
    ) -> int:
        """Add a threadblock's steps; return the end of its temporary slots."""
        run = _Run(self, gpu.id, tb, base)
        for number, step in enumerate(tb.steps):
            if step.kind is Kind.NOP:
                continue
            at = (gpu.id, tb.id, number)
            begin = len(self.rows)
            run.step(at, step)
            first[at], last[at] = begin, run.last
        return run.top


class _Run:
    """One threadblock: its lanes, and the temporary slots of fused steps and its connection."""

    def __init__(self, assembly: Assembly, rank: int, tb: Threadblock, base: int) -> None:
        self.a, self.rank, self.tb = assembly, rank, tb
        widest = max((step.count for step in tb.steps), default=0)
        self.width = min(assembly.per_call, max(widest, 1))
        self.fifo, self.value = base, base + assembly.held * self.width
        self.spare = self.value + widest
        self.top = self.spare + widest
        self.last = -1  # predecessor of the next step
        self.stored = [-1] * assembly.held
        self.sent = 0

    def step(self, at: At, step: BlockStep) -> None:
        if self.a.held and (step.kind.sends or step.kind.receives):
            for k in range(0, step.count, self.width):
                self._do(at, step, k, min(self.width, step.count - k))
        else:
            self._do(at, step, 0, step.count)

    def _do(self, at: At, step: BlockStep, k: int, count: int) -> None:
        src, dst = self._slot(step.src, k), self._slot(step.dst, k)
        if step.kind in (Kind.COPY, Kind.REDUCE):
            self._local(at, Op.COPY if step.kind is Kind.COPY else Op.REDUCE, src, dst, count)
            return
        if step.kind.receives:
            reduce = step.kind.reduces
            if step.kind is Kind.RECV_REDUCE_SEND:
                dst = self.value
            if reduce and src != dst:
                self._local(at, Op.COPY, src, dst, count)
            op = Op.RECV_REDUCE if reduce else Op.RECV
            receive = self._add(at, Direction.RECV, self.tb.recv, op, dst, -1, count)
            if self.a.held and step.kind.sends:  # it receives only once there is room
                room = self.stored[self.sent % self.a.held]
                self.a.edges += [(receive, room)] if room >= 0 else []
            src = dst
        if step.kind.sends:
            self._send(at, src, count)

    def _send(self, at: At, src: int, count: int) -> None:
        if not self.a.held:
            self._add(at, Direction.SEND, self.tb.send, Op.SEND, src, -1, count)
            return
        index = self.sent % self.a.held
        self.sent += 1
        slot = self.fifo + index * self.width
        stored = self._add(at, Direction.LOCAL, -1, Op.COPY, slot, src, count)
        if self.stored[index] >= 0:
            self.a.edges.append((stored, self.stored[index]))
        send = self._add(at, Direction.SEND, self.tb.send, Op.SEND, slot, -1, count)
        self.stored[index] = send
        self.last = stored  # no step waits for the receiver

    def _local(self, at: At, op: Op, src: int, dst: int, count: int) -> None:
        if abs(src - dst) < count:
            self._add(at, Direction.LOCAL, -1, Op.COPY, self.spare, src, count)
            if op is Op.COPY and src == dst:
                return  # in place: it writes the value that it already holds
            src = self.spare
        self._add(at, Direction.LOCAL, -1, op, dst, src, count)

    def _slot(self, location: Location, k: int) -> int:
        return self.a.regions.slot(self.rank, Location(location.buffer, location.offset + k))

    def _add(
        self, at: At, direction: Direction, peer: int, op: Op, slot: int, src: int, count: int
    ) -> int:
        a, sub = self.a, len(self.a.rows)
        channel = self.tb.id if direction is Direction.LOCAL else self.tb.channel
        key = (self.rank, int(direction), peer, channel)
        a.lanes.setdefault(key, []).append(sub)
        a.rows.append((int(op), slot, src, count))
        a.key.append(key)
        a.origin.append(at)
        if self.last >= 0 and a.key[self.last] != key:
            a.edges.append((sub, self.last))
        self.last = sub
        return sub


def _columns(rows: list[tuple[int, ...]], dtypes: dict[str, np.dtype]) -> dict[str, np.ndarray]:
    table = np.array(rows, dtype=np.int64).reshape(-1, len(dtypes))
    return {
        name: np.ascontiguousarray(table[:, k], dtype=dtype)
        for k, (name, dtype) in enumerate(dtypes.items())
    }
