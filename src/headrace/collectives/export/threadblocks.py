"""Lowering to threadblocks: from a program's lanes to MSCCL's sequential threadblocks.

After TACCL, 5.6.2: instructions, dependencies, threadblocks, instances; with the fused
receive-reduce-copy-send that it lacked. In order:

1. `pairing` groups the lanes of a rank: a receive lane and the send lane that forwards most of its
   units become one threadblock; they are separated again if hardly any of it can be fused, as each
   would only wait for the other.
2. `emission` puts all messages in one order that the program allows. A received message is
   forwarded at once if nothing else has to come first: then both are one fused step. Adjacent slots
   of one message become one step.
3. Each threadblock runs its steps in that order. So the wait-for graph of threadblocks has no
   cycle: of the messages that have not ended, the first has nothing left to wait for.
4. A threadblock that would be too long for the runtime is split (`splitting`).
5. Dependencies between threadblocks are the program's, less those that the order inside a
   threadblock or an earlier wait implies.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.collectives.errors import ProgramError
from headrace.collectives.export.algorithm import (
    Algorithm,
    BlockStep,
    Gpu,
    Kind,
    Location,
    Threadblock,
    Wait,
)
from headrace.collectives.export.buffers import NAMES, Layout, chunks_per_loop
from headrace.collectives.export.emission import Emission, StreamEvent
from headrace.collectives.export.limits import THREADBLOCKS
from headrace.collectives.export.pairing import paired_lanes, separated
from headrace.collectives.export.runtimes import STRICTEST
from headrace.collectives.export.splitting import Weigh, parts, split_stream
from headrace.collectives.export.units import Units
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Program
from headrace.errors import VerificationError
from headrace.topology import BYTES_PER_MB

INSTANCES = (1, 2, 4, 8)
PROTOCOLS = ("Simple", "LL", "LL128")

Weight = Callable[[StreamEvent, StreamEvent | None, int, int], int]
"""Most steps of an event: given the event that receives its message, waits and releases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Parameters of an export.

    Attributes
    ----------
    instances : parallel copies, each moving 1/instances of every chunk (5.6.2). For small sizes
        (where a sketch would say ``uc-max``) one, for large ones (``uc-min``) eight (5.8.3).
    in_place : for calls whose input and output overlap; out of place otherwise.
    buffered : rely on the buffers of NCCL's connections: 2 chunks with the Simple protocol, 8 with
        the others. Rings then take fewer rounds; what relies on more is refused. Not for MSCCL++,
        which has none.
    runtime : its limits apply (`runtimes.RUNTIMES`); by default those of all that read the form.
    processors : most threadblocks, where they have to be split; 0: any number.
    name : of the algorithm; derived from the collective if empty.
    min_bytes, max_bytes : sizes that select it; a `max_bytes` of 0 is no limit.
    """

    instances: int = 1
    in_place: bool = False
    buffered: bool = False
    protocol: str = "Simple"
    runtime: str = STRICTEST
    processors: int = 0
    name: str = ""
    min_bytes: int = 0
    max_bytes: int = 0

    def __post_init__(self) -> None:
        if self.instances not in INSTANCES:
            raise ProgramError(f"instances is {self.instances}, needs one of {INSTANCES}")
        if self.protocol not in PROTOCOLS:
            raise ProgramError(f"protocol is {self.protocol!r}, needs one of {PROTOCOLS}")
        if self.min_bytes < 0 or 0 < self.max_bytes < self.min_bytes or self.max_bytes < 0:
            raise ProgramError(
                f"sizes go from {self.min_bytes} to {self.max_bytes} bytes, need 0 or more and a "
                "maximum that is 0 (no limit) or not below the minimum"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """A program in the order of its threadblocks, before it is split into them."""

    target: Target
    layout: Layout
    emission: Emission

    @classmethod
    def of(cls, program: Program, target: Target, *, store_all: bool = False) -> "Lowering":
        """Put `program` in order.

        Parameters
        ----------
        store_all : also store what is only sent on (rrcs instead of rrs).

        Raises
        ------
        VerificationError : if the program is wrong.
        ProgramError : if the call is not supported (all_to_all in place).
        """
        verify(program)
        layout = Layout(demand=program.demand, in_place=target.in_place)
        emission = _emitted(Units.of(program), layout, target, store_all=store_all)
        return cls(target=target, layout=layout, emission=emission)

    def algorithm(self, weigh: Weight | None = None, most: int = 0) -> Algorithm:
        """Return the threadblocks.

        Parameters
        ----------
        weigh, most : split them so that none weighs more (see `splitting`); default: do not split.
        """
        demand, target = self.layout.demand, self.target
        streams = self.emission.streams
        part: dict[int, int] = {}
        needed = [_needed(stream.events for stream in of_rank) for of_rank in streams]
        if weigh is not None and not target.buffered:
            every = {event: on for of_rank in needed for event, on in of_rank.items()}
            part = parts(streams, _weighing(weigh, every), most)
        gpus = [self._gpu(rank, part, needed[rank]) for rank in range(demand.ranks)]
        used = {tb.channel for gpu in gpus for tb in gpu.threadblocks}
        candidate = Algorithm(
            name=target.name or f"headrace_{demand.collective}_{demand.ranks}",
            protocol=target.protocol,
            channels=max(used, default=0) + 1,
            chunks_per_loop=chunks_per_loop(demand),
            collective=NAMES[demand.collective],
            in_place=target.in_place,
            out_of_place=not target.in_place,
            min_bytes=target.min_bytes,
            max_bytes=target.max_bytes,
            gpus=tuple(gpus),
        )
        most = max(len(gpu.threadblocks) for gpu in gpus) * target.instances
        if part and 0 < target.processors < most:
            raise VerificationError(
                f"makes {most} threadblocks where they have to be split, needs at most "
                f"{target.processors}: export fewer instances"
            )
        return instanced(candidate, target.instances, demand.chunks)

    def _gpu(self, rank: int, part: Mapping[int, int], needed: Mapping[int, list[int]]) -> Gpu:
        streams = [s for s in self.emission.streams[rank] if s.events]
        pieces = [split_stream(stream, part) for stream in streams]
        waits = _waits(needed, pieces)
        threadblocks: list[Threadblock] = []
        for stream, split in zip(streams, pieces, strict=True):
            for events in split:
                number = len(threadblocks)
                threadblocks.append(
                    Threadblock(
                        id=number,
                        send=stream.send,
                        recv=stream.recv,
                        channel=stream.channel + part.get(events[0].number, 0) * self._channels,
                        steps=_steps(events, waits, threadblock=number),
                    )
                )
        sizes = self.layout.sizes(rank)
        return Gpu(
            id=rank,
            input_chunks=sizes[0],
            output_chunks=sizes[1],
            scratch_chunks=_scratch_used(threadblocks),
            threadblocks=tuple(threadblocks),
        )

    @property
    def _channels(self) -> int:
        """Channels of the threadblocks before they are split; those of each part come after."""
        channels = (keys[3] for keys in self.emission.units.lanes)
        return 1 + max(channels, default=0)


def _weighing(weigh: Weight, needed: Mapping[int, Sequence[int]]) -> Weigh:
    """Return `weigh` as a function of events, with their numbers of waits and releases."""
    released = Counter(on for waits in needed.values() for on in waits)

    def of(event: StreamEvent, following: StreamEvent | None) -> int:
        return weigh(event, following, len(needed[event.number]), released[event.number])

    return of


def _emitted(units: Units, layout: Layout, target: Target, *, store_all: bool) -> Emission:
    """Return the emission, with only those lanes paired of which most messages can be fused."""
    limit = THREADBLOCKS // target.instances
    groups = paired_lanes(units, layout.demand.ranks, limit)
    while True:
        emission = Emission(
            units,
            layout,
            groups,
            within_blocks=target.instances > 1,
            buffered=target.buffered,
        )
        emission.run(store_all=store_all)
        fused = [[_fuses(stream.events) for stream in streams] for streams in emission.streams]
        apart = separated(groups, fused, limit)
        if apart == groups:
            return emission
        groups = apart


def _fuses(events: list[StreamEvent]) -> bool:
    """Return whether at least half of the receives are forwarded by the same step."""
    received = [event.kind.sends for event in events if event.kind.receives]
    return 2 * sum(received) >= len(received)


def renumbered(algorithm: Algorithm, awaited: int) -> Algorithm:
    """Return `algorithm` with awaited threadblocks numbered first, where ids need that.

    Parameters
    ----------
    awaited : the highest id that may be waited for.
    """

    def gpu(g: Gpu) -> Gpu:
        waited = {s.depends.threadblock for tb in g.threadblocks for s in tb.steps if s.depends}
        if max(waited, default=0) <= awaited:
            return g
        order = sorted(g.threadblocks, key=lambda tb: (tb.id not in waited, tb.id))
        number = {tb.id: k for k, tb in enumerate(order)}

        def step(s: BlockStep) -> BlockStep:
            wait = s.depends and Wait(number[s.depends.threadblock], s.depends.step)
            return replace(s, depends=wait)

        blocks = (replace(tb, id=number[tb.id], steps=tuple(map(step, tb.steps))) for tb in order)
        return replace(g, threadblocks=tuple(blocks))

    return replace(algorithm, gpus=tuple(map(gpu, algorithm.gpus)))


def suggested_instances(total_bytes: int) -> int:
    """Return the instances for a size: one up to 1 MB, eight above (5.8.2, 5.8.3)."""
    return 1 if total_bytes <= BYTES_PER_MB else INSTANCES[-1]


def instanced(algorithm: Algorithm, instances: int, chunks: int) -> Algorithm:
    """Divide every chunk by `instances`; a copy of all threadblocks moves each part.

    Part j of chunk k of a block of c chunks is chunk ``j*c + k`` of the divided block, so that
    neighbours stay neighbours. Copy j of a threadblock on channel h is on channel
    ``h*instances + j``. No step may reach from one block into the next.
    """
    if instances == 1:
        return algorithm

    def location(at: Location, j: int) -> Location:
        if at.offset < 0:
            return at
        block, k = divmod(at.offset, chunks)
        return Location(at.buffer, block * chunks * instances + j * chunks + k)

    def step(s: BlockStep, j: int, threadblocks: int) -> BlockStep:
        wait = s.depends and Wait(s.depends.threadblock + j * threadblocks, s.depends.step)
        return replace(s, src=location(s.src, j), dst=location(s.dst, j), depends=wait)

    def gpu(g: Gpu) -> Gpu:
        count = len(g.threadblocks)
        copies = [
            replace(
                tb,
                id=tb.id + j * count,
                channel=tb.channel * instances + j,
                steps=tuple(step(s, j, count) for s in tb.steps),
            )
            for j in range(instances)
            for tb in g.threadblocks
        ]
        return replace(
            g,
            input_chunks=g.input_chunks * instances,
            output_chunks=g.output_chunks * instances,
            scratch_chunks=-(-g.scratch_chunks // chunks) * chunks * instances,
            threadblocks=tuple(copies),
        )

    return replace(
        algorithm,
        channels=algorithm.channels * instances,
        chunks_per_loop=algorithm.chunks_per_loop * instances,
        gpus=tuple(map(gpu, algorithm.gpus)),
    )


@dataclass(slots=True)
class _Waits:
    """By event: the events that it waits for, its position, and whether it is waited for."""

    on: dict[int, list[int]]
    at: dict[int, Wait]
    flagged: set[int]


def _needed(streams: Iterable[list[StreamEvent]]) -> dict[int, list[int]]:
    """Return by event the events that it waits for, ascending, less the waits that are implied."""
    streams = list(streams)
    home = {event.number: (t, k) for t, s in enumerate(streams) for k, event in enumerate(s)}
    waits: dict[int, list[int]] = {}
    for t, stream in enumerate(streams):
        waited: dict[int, int] = {}
        for event in stream:
            needed = waits[event.number] = []
            for on in sorted(event.after, reverse=True):
                producer, k = home[on]
                if producer != t and waited.get(producer, -1) < k:
                    waited[producer] = k
                    needed.append(on)
            needed.reverse()
    return waits


def _waits(needed: Mapping[int, list[int]], pieces: Iterable[list[list[StreamEvent]]]) -> _Waits:
    """Number the steps with the nops that waits need; each piece waits for the one before.

    Parameters
    ----------
    pieces : by stream, the events of each of its threadblocks.
    """
    waits = _Waits(on=dict(needed), at={}, flagged=set())
    threadblock = 0
    for stream in pieces:
        for before, piece in zip([None, *stream], stream, strict=False):
            if before is not None:
                first = piece[0].number
                waits.on[first] = sorted({*needed[first], before[-1].number})
            position = 0
            for event in piece:
                position += max(1, len(waits.on[event.number]))
                waits.at[event.number] = Wait(threadblock, position - 1)
                waits.flagged.update(waits.on[event.number])
            threadblock += 1
    return waits


def _steps(events: list[StreamEvent], waits: _Waits, *, threadblock: int) -> tuple[BlockStep, ...]:
    """Turn events into steps; all but the last of an event's waits are nops before it."""
    steps: list[BlockStep] = []
    for event in events:
        assert waits.at[event.number].threadblock == threadblock
        on = [waits.at[number] for number in waits.on[event.number]]
        steps += [BlockStep(kind=Kind.NOP, depends=wait) for wait in on[:-1]]
        steps.append(
            BlockStep(
                kind=event.kind,
                src=event.src,
                dst=event.dst,
                count=event.count,
                depends=on[-1] if on else None,
                flagged=event.number in waits.flagged or event.ends_chain,
            )
        )
    return tuple(steps)


def _scratch_used(threadblocks: Iterable[Threadblock]) -> int:
    used = 0
    for threadblock in threadblocks:
        for step in threadblock.steps:
            for location in (step.src, step.dst):
                if location.buffer == "s" and step.kind is not Kind.NOP:
                    used = max(used, location.offset + step.count)
    return used
