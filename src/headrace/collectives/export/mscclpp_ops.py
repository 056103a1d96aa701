"""The operations of an MSCCL++ plan, and the sequences of them that make a step.

Part of `mscclpp_read`: an operation with its references resolved (`MscclppOp`), the sequences that
are read (`PATTERNS`), and a step of which one end has been read (`Half`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.collectives.export.algorithm import NOWHERE, BlockStep, Kind, Location, Wait


@dataclass(slots=True)
class MscclppOp:
    """An operation with its references resolved to the GPU's tables.

    Attributes
    ----------
    number : position among the threadblock's operations, as the plan counts.
    phase : number of barriers (nops) before it.
    """

    name: str
    number: int = -1
    phase: int = 0
    channel: int = -1
    src: list[tuple[int, Location]] = field(default_factory=list[tuple[int, Location]])
    dst: list[tuple[int, Location]] = field(default_factory=list[tuple[int, Location]])
    size: int = 0
    semaphores: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class Half:
    """A step under construction; channels are the GPU's, or -1; `ops` are its operations."""

    kind: Kind
    recv: int = -1
    send: int = -1
    src: Location | None = None
    dst: Location | None = None
    count: int = 0
    acquired: list[int] = field(default_factory=list[int])
    released: list[int] = field(default_factory=list[int])
    remote: Location | None = None  # that rre reads at the sender
    lands: Location | None = None  # that put or rres writes at the receiver
    ops: list[MscclppOp] = field(default_factory=list[MscclppOp])

    @property
    def touches(self) -> bool:
        """Return whether this threadblock moves the step's data itself; otherwise its peer does."""
        return any(op.dst for op in self.ops)


OPERATIONS = {
    "nop": ">",
    "signal": ">",
    "wait": ">",
    "sem_acquire": ">",
    "sem_release": ">",
    "copy": "l>l",
    "re": "ll>l",
    "put": "l>r",
    "rre": "lr>l",
    "rres": "lr>lr",
}
"""The operations that are read, and their buffers: local and remote, before and after."""


def _copy(ops: list[MscclppOp]) -> Half | None:
    return Half(Kind.COPY, src=ops[0].src[0][1], dst=ops[0].dst[0][1], count=ops[0].size)


def _reduce(ops: list[MscclppOp]) -> Half | None:
    into, other, result = ops[0].src[0][1], ops[0].src[1][1], ops[0].dst[0][1]
    if into != result:
        return None
    return Half(Kind.REDUCE, src=other, dst=result, count=ops[0].size)


def _read_reduce_send(ops: list[MscclppOp]) -> Half | None:
    came, goes, op = ops[0].channel, ops[1].channel, ops[2]
    if (ops[3].channel, ops[4].channel) != (came, goes):
        return None
    return Half(
        Kind.RECV_REDUCE_COPY_SEND,
        recv=came,
        send=goes,
        src=op.src[0][1],
        dst=op.dst[0][1],
        count=op.size,
        remote=op.src[1][1],
        lands=op.dst[1][1],
    )


def _read_reduce(ops: list[MscclppOp]) -> Half | None:
    if ops[0].channel != ops[2].channel:
        return None
    op = ops[1]
    return Half(
        Kind.RECV_REDUCE_COPY,
        recv=ops[0].channel,
        src=op.src[0][1],
        dst=op.dst[0][1],
        count=op.size,
        remote=op.src[1][1],
    )


def _put(ops: list[MscclppOp]) -> Half | None:
    if not ops[0].channel == ops[1].channel == ops[2].channel:
        return None
    op = ops[1]
    return Half(Kind.SEND, send=op.channel, src=op.src[0][1], count=op.size, lands=op.dst[0][1])


def _signal_wait(ops: list[MscclppOp]) -> Half | None:
    """Return a receive of a peer's put, or a send that a peer reads; the peer's plan decides."""
    if ops[0].channel != ops[1].channel:
        return None
    return Half(Kind.NOP, send=ops[0].channel)


PATTERNS: tuple[tuple[tuple[str, ...], Callable[[list[MscclppOp]], Half | None]], ...] = (
    (("copy",), _copy),
    (("re",), _reduce),
    (("wait", "wait", "rres", "signal", "signal"), _read_reduce_send),
    (("wait", "rre", "signal"), _read_reduce),
    (("wait", "put", "signal"), _put),
    (("signal", "wait"), _signal_wait),
)
"""Sequences of operations without nops, and their parsers; the first that fits is used."""


_Table = dict[tuple[int, int], list[Half]]


def ends_of(halves: list[list[list[Half]]]) -> tuple[_Table, _Table, _Table]:
    """Return by (gpu, channel) the puts, the reads, and those yet undecided."""
    sends: _Table = {}
    receives: _Table = {}
    undecided: _Table = {}
    for gpu, blocks in enumerate(halves):
        for block in blocks:
            for half in block:
                if half.kind is Kind.NOP:
                    undecided.setdefault((gpu, half.send), []).append(half)
                    continue
                if half.lands is not None:
                    sends.setdefault((gpu, half.send), []).append(half)
                if half.remote is not None:
                    receives.setdefault((gpu, half.recv), []).append(half)
    return sends, receives, undecided


def positions(halves: list[list[Half]]) -> dict[int, Wait]:
    """Return by semaphore the step that releases it, nops counted."""
    at: dict[int, Wait] = {}
    for k, block in enumerate(halves):
        number = 0
        for half in block:
            number += max(1, len(half.acquired))
            at.update((semaphore, Wait(k, number - 1)) for semaphore in half.released)
    return at


def with_waits(block: list[Half], at: dict[int, Wait]) -> tuple[BlockStep, ...]:
    """Return the steps of a threadblock; all but the last of a step's waits are nops."""
    steps: list[BlockStep] = []
    for half in block:
        waits = [at[semaphore] for semaphore in half.acquired]
        steps += [BlockStep(kind=Kind.NOP, depends=wait) for wait in waits[:-1]]
        steps.append(
            BlockStep(
                kind=half.kind,
                src=half.src or NOWHERE,
                dst=half.dst or NOWHERE,
                count=half.count,
                depends=waits[-1] if waits else None,
                flagged=bool(half.released),
            )
        )
    return tuple(steps)
