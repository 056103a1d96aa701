"""Barriers (``nop``) in MSCCL++: order of a threadblock's operations, thread by thread.

The executor runs each operation on all threads of the block, and only ``nop`` is a barrier among
them. Signals, waits and semaphores run on one thread each: thread k the k-th that is named. So the
operations between two barriers, a *phase*, are in order only as far as one thread runs both. The
proof of the steps holds if in every phase

- no data is touched before the waits of the step: a wait of its own, a semaphore of its own or
  of an earlier step of the phase;
- every signal and released semaphore is ordered after what it publishes: data of the same step, for
  semaphores any data; waits of other threads;
- no two operations touch the same chunk, one of them writing it. A step of ``signal`` and ``wait``
  touches what its peer puts or reads in between.

Steps of later phases come after all of it. Single threads keep their own order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from headrace.collectives.export.algorithm import Kind, Location
from headrace.collectives.export.mscclpp_ops import Half, MscclppOp

Memory = Callable[[Location], Location]
"""Canonical name of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unordered:
    """Two operations that lack a barrier between them, and the reason for it."""

    first: MscclppOp
    second: MscclppOp
    why: str

    def __str__(self) -> str:
        """Return one line: both operations, and the remedy."""
        a, b = self.first, self.second
        if a is b:
            return f"op {a.number} ({a.name}) {self.why}"
        return (
            f"op {b.number} ({b.name}) is not ordered after op {a.number} ({a.name}), {self.why}: "
            "threads go from one to the other without a barrier; needs a nop between them"
        )


@dataclass(frozen=True, slots=True)
class _Access:
    location: Location
    end: int
    write: bool
    data: bool  # by all threads of the block; by a peer otherwise
    op: MscclppOp


@dataclass(slots=True)
class _Phase:
    """Accesses since the last barrier."""

    accesses: list[_Access] = field(default_factory=list[_Access])
    data: MscclppOp | None = None  # the last that touches data, and its step
    data_step: Half | None = None
    blocking: MscclppOp | None = None  # a wait or an acquired semaphore
    waited: tuple[MscclppOp, Half] | None = None
    acquired: MscclppOp | None = None
    spread: MscclppOp | None = None  # semaphores acquired by several threads
    peers: set[int] = field(default_factory=set[int])  # steps whose peer's access is noted


def unordered(steps: Sequence[Half], memory: Memory) -> Iterator[Unordered]:
    """Yield operations of a threadblock that lack a barrier, at most one a phase and rule."""
    phase, number = _Phase(), 0
    for step in steps:
        for op in step.ops:
            if op.phase != number:
                yield from _conflict(phase.accesses)
                phase, number = _Phase(), op.phase
            yield from _taken(phase, op, step, memory)
    yield from _conflict(phase.accesses)


def _taken(phase: _Phase, op: MscclppOp, step: Half, memory: Memory) -> Iterator[Unordered]:
    """Check `op` against the accesses of its phase, and add it."""
    if op.name in ("signal", "wait", "sem_acquire", "sem_release"):
        yield from _synchronised(phase, op, step)
        if op.name in ("signal", "wait") and not step.touches and id(step) not in phase.peers:
            phase.peers.add(id(step))
            write = step.kind is Kind.RECV
            location = step.dst if write else step.src
            if location is not None:
                phase.accesses.append(_access(memory(location), step.count, op, write=write))
        return
    if phase.acquired is not None:
        yield Unordered(first=phase.acquired, second=op, why="which orders other threadblocks")
    elif phase.waited is not None and phase.waited[1] is step:
        yield Unordered(first=phase.waited[0], second=op, why="which its peer has to signal first")
    phase.data, phase.data_step = op, step
    written = [memory(location) for rank, location in op.dst if rank < 0]
    read = {memory(location) for rank, location in op.src if rank < 0}
    for location in written:
        for source in read:
            if (
                0 < abs(location.offset - source.offset) < op.size
                and location.buffer == source.buffer
            ):
                yield Unordered(
                    first=op,
                    second=op,
                    why=f"reads from {source} and writes from {location} on, {op.size} chunks each"
                    ": threads overwrite data that others have yet to read; needs ranges apart",
                )
    accesses = [(location, True) for location in written]
    accesses += [(location, False) for location in read.difference(written)]
    phase.accesses += [
        _access(location, op.size, op, write=write, data=True) for location, write in accesses
    ]


def _synchronised(phase: _Phase, op: MscclppOp, step: Half) -> Iterator[Unordered]:
    threads = len(op.semaphores)
    if op.name in ("signal", "sem_release"):
        everywhere = op.name == "sem_release"
        if phase.data is not None and (everywhere or phase.data_step is step):
            yield Unordered(first=phase.data, second=op, why="whose end it announces")
        elif phase.spread is not None:
            why = f"whose {len(phase.spread.semaphores)} semaphores other threads wait for"
            yield Unordered(first=phase.spread, second=op, why=why)
        elif threads > 1 and phase.blocking is not None:
            why = f"as {threads} threads release a semaphore each"
            yield Unordered(first=phase.blocking, second=op, why=why)
        return
    phase.blocking = op
    if op.name == "wait":
        phase.waited = op, step
        return
    phase.acquired = op
    if threads > 1:
        phase.spread = op


def _access(
    location: Location, count: int, op: MscclppOp, *, write: bool, data: bool = False
) -> _Access:
    return _Access(location, location.offset + count, write, data, op)


def _conflict(accesses: list[_Access]) -> Iterator[Unordered]:
    """Yield the first two accesses of a phase that conflict, going up through memory.

    Accesses of one operation do not conflict: they are apart, or one. Those of peers are in order
    among themselves, as one thread signals and waits for all.
    """
    if len(accesses) < 2 or not any(access.data for access in accesses):
        return
    furthest: dict[tuple[bool, bool], _Access] = {}  # by (write, data)
    buffer = ""
    for access in sorted(accesses, key=lambda access: access.location):
        if access.location.buffer != buffer:
            furthest.clear()
            buffer = access.location.buffer
        for (write, data), earlier in furthest.items():
            overlaps = access.location.offset < earlier.end
            if overlaps and (access.write or write) and (access.data or data):
                first, second = sorted((earlier.op, access.op), key=lambda op: op.number)
                yield Unordered(first=first, second=second, why=f"and both touch {access.location}")
                return
        kind = access.write, access.data
        if kind not in furthest or furthest[kind].end < access.end:
            furthest[kind] = access
