"""Barriers (``nop``) in MSCCL++: order of a threadblock's operations, thread by thread.

The executor runs each operation on all threads of the block, and only ``nop`` is a barrier among
them. Signals, waits and semaphores take one thread each: thread k the k-th that is named. So the
operations between two barriers, a *phase*, are in order only as far as one thread takes both. The
proof of the steps holds if in every phase

- no data is touched before what the step waits for: a wait of its own, a semaphore of its own or
  of an earlier step of the phase;
- nothing is published (a signal, a released semaphore) by a thread that need not have seen what
  comes before: data of the same step, for semaphores any data; what other threads wait for;
- no two operations touch the same chunk, one of them writing it. A step of ``signal`` and ``wait``
  touches what its peer puts or reads in between.

Steps that follow in later phases come after all of it. Single threads keep their own order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from headrace.collectives.export.algorithm import Kind, Place
from headrace.collectives.export.mscclpp_ops import Half, Op

Memory = Callable[[Place], Place]
"""One name for all names of the same chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unordered:
    """Two operations without the barrier that they need, and why they need it."""

    first: Op
    second: Op
    why: str

    def __str__(self) -> str:
        """Return one line that names both and the remedy."""
        a, b = self.first, self.second
        if a is b:
            return f"op {a.number} ({a.name}) {self.why}"
        return (
            f"op {b.number} ({b.name}) is not ordered after op {a.number} ({a.name}), {self.why}: "
            "threads go from one to the other without a barrier; needs a nop between them"
        )


@dataclass(frozen=True, slots=True)
class _Access:
    place: Place
    end: int
    write: bool
    data: bool  # by all threads of the block; by a peer otherwise
    op: Op


@dataclass(slots=True)
class _Phase:
    """Accesses since the last barrier."""

    accesses: list[_Access] = field(default_factory=list[_Access])
    data: Op | None = None  # the last that touches data, and its step
    data_step: Half | None = None
    blocking: Op | None = None  # a wait or an acquired semaphore
    waited: tuple[Op, Half] | None = None
    acquired: Op | None = None
    spread: Op | None = None  # semaphores acquired by several threads
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


def _taken(phase: _Phase, op: Op, step: Half, memory: Memory) -> Iterator[Unordered]:
    """Check `op` against what its phase holds already, and add it."""
    if op.name in ("signal", "wait", "sem_acquire", "sem_release"):
        yield from _synchronised(phase, op, step)
        if op.name in ("signal", "wait") and not step.touches and id(step) not in phase.peers:
            phase.peers.add(id(step))
            write = step.kind is Kind.RECV
            place = step.dst if write else step.src
            if place is not None:
                phase.accesses.append(_access(memory(place), step.count, op, write=write))
        return
    if phase.acquired is not None:
        yield Unordered(first=phase.acquired, second=op, why="which orders other threadblocks")
    elif phase.waited is not None and phase.waited[1] is step:
        yield Unordered(first=phase.waited[0], second=op, why="which its peer has to answer first")
    phase.data, phase.data_step = op, step
    written = [memory(place) for rank, place in op.dst if rank < 0]
    read = {memory(place) for rank, place in op.src if rank < 0}
    for place in written:
        for other in read:
            if 0 < abs(place.offset - other.offset) < op.size and place.buffer == other.buffer:
                yield Unordered(
                    first=op,
                    second=op,
                    why=f"reads from {other} on and writes from {place} on, {op.size} chunks each: "
                    "threads overwrite what others have yet to read; needs ranges apart",
                )
    accesses = [(place, True) for place in written]
    accesses += [(place, False) for place in read.difference(written)]
    phase.accesses += [
        _access(place, op.size, op, write=write, data=True) for place, write in accesses
    ]


def _synchronised(phase: _Phase, op: Op, step: Half) -> Iterator[Unordered]:
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


def _access(place: Place, count: int, op: Op, *, write: bool, data: bool = False) -> _Access:
    return _Access(place, place.offset + count, write, data, op)


def _conflict(accesses: list[_Access]) -> Iterator[Unordered]:
    """Yield the first two accesses of a phase that conflict, going up through memory.

    Accesses of one operation do not meet here: they are apart, or one. Those of peers are in order
    among themselves, as one thread signals and waits for all.
    """
    if len(accesses) < 2 or not any(access.data for access in accesses):
        return
    furthest: dict[tuple[bool, bool], _Access] = {}  # by (write, data)
    buffer = ""
    for access in sorted(accesses, key=lambda access: access.place):
        if access.place.buffer != buffer:
            furthest.clear()
            buffer = access.place.buffer
        for (write, data), other in furthest.items():
            meets = access.place.offset < other.end
            if meets and (access.write or write) and (access.data or data):
                first, second = sorted((other.op, access.op), key=lambda op: op.number)
                yield Unordered(first=first, second=second, why=f"and both touch {access.place}")
                return
        kind = access.write, access.data
        if kind not in furthest or furthest[kind].end < access.end:
            furthest[kind] = access
