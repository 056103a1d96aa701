"""Threadblocks: the program of MSCCL's executor, as a value.

An `Algorithm` is the intermediate representation of this folder: `threadblocks` lowers a program to
it, `msccl_xml` and `mscclpp_json` write and read it, `limits` and `prove` check it.

Meaning
-------
- The steps of a threadblock run one after another. It sends to at most one GPU and receives from
  at most one; the k-th send from GPU a to GPU b on a channel matches the k-th receive there.
- ``s`` sends `src`, ``r`` receives into `dst`. ``rcs`` receives into `dst` and sends it on. ``rrc``
  puts `src` combined with what arrives into `dst`; ``rrcs`` sends it on as well; ``rrs`` sends it
  on and stores nothing. ``cpy`` copies `src` to `dst`, ``re`` combines `src` into `dst`. ``nop``
  only waits.
- A step with `depends` waits until the other threadblock has finished that step, or a later one
  that is `flagged`: threadblocks publish their progress at flagged steps only.
- All chunks are equally large, scratch ones too. A location is a buffer (input, output, scratch)
  and an offset in chunks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

Buffer = Literal["i", "o", "s"]

At = tuple[int, int, int]
"""(gpu, threadblock, step)."""


class Kind(StrEnum):
    """Operation of a step; the values are MSCCL's names, each with what it does.

    Attributes
    ----------
    sends, receives, reduces : it sends, it receives, it combines.
    reads, writes : `BlockStep.src` and `dst` have a meaning.
    """

    sends: bool
    receives: bool
    reduces: bool
    reads: bool
    writes: bool

    SEND = "s", "reads sends"
    RECV = "r", "receives writes"
    RECV_COPY_SEND = "rcs", "receives writes sends"
    RECV_REDUCE_SEND = "rrs", "receives reads reduces sends"
    RECV_REDUCE_COPY = "rrc", "receives reads reduces writes"
    RECV_REDUCE_COPY_SEND = "rrcs", "receives reads reduces writes sends"
    COPY = "cpy", "reads writes"
    REDUCE = "re", "reads reduces writes"
    NOP = "nop", ""

    def __new__(cls, name: str, does: str) -> "Kind":
        """Return the kind of this name that does what `does` lists."""
        operation = str.__new__(cls, name)
        operation._value_ = name
        for verb in ("sends", "receives", "reduces", "reads", "writes"):
            setattr(operation, verb, verb in does.split())
        return operation


class Location(NamedTuple):
    """A chunk of one of a GPU's buffers."""

    buffer: Buffer
    offset: int

    def __str__(self) -> str:
        """Return, for example, ``o[3]``."""
        return f"{self.buffer}[{self.offset}]"


NOWHERE = Location("i", -1)
"""Location that has no meaning for the step's kind."""


class Wait(NamedTuple):
    """A step of a threadblock of the same GPU."""

    threadblock: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStep:
    """One step; `src` and `dst` count where the kind reads or writes them."""

    kind: Kind
    src: Location = NOWHERE
    dst: Location = NOWHERE
    count: int = 0
    depends: Wait | None = None
    flagged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Threadblock:
    """An ordered stream of steps with at most one peer either way (-1 for none)."""

    id: int
    send: int
    recv: int
    channel: int
    steps: tuple[BlockStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU's buffers, in chunks, and threadblocks."""

    id: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: tuple[Threadblock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """All GPUs' threadblocks, and the calls that they implement.

    Attributes
    ----------
    protocol : Simple, LL or LL128.
    channels : number of channels.
    chunks_per_loop : chunks of the whole buffer (see `buffers.chunks_of`).
    collective : MSCCL's name of it.
    in_place, out_of_place : calls that select it.
    min_bytes, max_bytes : sizes that select it; a `max_bytes` of 0 is no limit.
    """

    name: str
    protocol: str
    channels: int
    chunks_per_loop: int
    collective: str
    in_place: bool
    out_of_place: bool
    min_bytes: int = 0
    max_bytes: int = 0
    gpus: tuple[Gpu, ...]

    def steps(self) -> Iterator[tuple[At, BlockStep]]:
        """Yield every step with its place."""
        for gpu in self.gpus:
            for tb in gpu.threadblocks:
                for number, step in enumerate(tb.steps):
                    yield (gpu.id, tb.id, number), step


@dataclass(frozen=True, slots=True)
class Finding:
    """An error or warning about an algorithm, and its location.

    Attributes
    ----------
    rule : kind of rule that is broken: format, limit, connection, deadlock, race, value,
        buffering, agreement, input.
    gpu, threadblock, step : location, as far as known; -1 otherwise.
    fatal : the algorithm must not run (a warning otherwise).
    """

    rule: str
    message: str
    gpu: int = -1
    threadblock: int = -1
    step: int = -1
    fatal: bool = field(default=True, kw_only=True)

    def __str__(self) -> str:
        """Return one line: severity, rule, location, message."""
        named = (("gpu", self.gpu), ("threadblock", self.threadblock), ("step", self.step))
        where = ", ".join(f"{name} {number}" for name, number in named if number >= 0)
        location = f"{where}: " if where else ""
        return f"{'error' if self.fatal else 'warning'} ({self.rule}): {location}{self.message}"
