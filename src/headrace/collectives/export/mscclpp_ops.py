"""The operations of an MSCCL++ plan, and the sequences of them that make a step.

Part of `mscclpp_read`: an operation with its references resolved (`MscclppOp`), the sequences that
are read (`PATTERNS`), and a step of which one end has been read (`Half`).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

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


class Pattern(NamedTuple):
    """A sequence of operations, without nops, that makes a step.

    Attributes
    ----------
    receives, sends : the operations on the channel that the step receives by, and sends by.
    """

    names: tuple[str, ...]
    kind: Kind
    receives: tuple[int, ...] = ()
    sends: tuple[int, ...] = ()

    def half(self, ops: list[MscclppOp]) -> Half | None:
        """Return the step that `ops` make; None if their names, channels or operands differ."""
        if tuple(op.name for op in ops) != self.names:
            return None
        recv, send = ({ops[k].channel for k in ends} for ends in (self.receives, self.sends))
        op = next((op for op in ops if op.dst), ops[0])
        src, dst = ([at for rank, at in ends if rank < 0] for ends in (op.src, op.dst))
        remote, lands = ([at for rank, at in ends if rank >= 0] for ends in (op.src, op.dst))
        if len(recv) > 1 or len(send) > 1 or (self.kind is Kind.REDUCE and src[0] != dst[0]):
            return None
        return Half(
            self.kind,
            recv=max(recv, default=-1),
            send=max(send, default=-1),
            src=src[-1] if src else None,
            dst=dst[0] if dst else None,
            count=op.size,
            remote=remote[0] if remote else None,
            lands=lands[0] if lands else None,
        )


PATTERNS = (
    Pattern(("copy",), Kind.COPY),
    Pattern(("re",), Kind.REDUCE),
    Pattern(
        ("wait", "wait", "rres", "signal", "signal"), Kind.RECV_REDUCE_COPY_SEND, (0, 3), (1, 4)
    ),
    Pattern(("wait", "rre", "signal"), Kind.RECV_REDUCE_COPY, (0, 2)),
    Pattern(("wait", "put", "signal"), Kind.SEND, (), (0, 1, 2)),
    # A receive of a peer's put, or a send that a peer reads; the peer's plan decides.
    Pattern(("signal", "wait"), Kind.NOP, (), (0, 1)),
)
"""The sequences that are read; the first that fits is used."""


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
