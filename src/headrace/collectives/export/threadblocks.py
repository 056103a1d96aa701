"""Lowering to threadblocks: from a program's lanes to MSCCL's sequential threadblocks.

After TACCL, 5.6.2: instructions, dependencies, threadblocks, instances; with the fused
receive-reduce-copy-send that it lacked. In order:

1. `pairing` groups the lanes of a rank: a receive lane and the send lane that passes on most of
   what it brings become one threadblock; they are parted again if hardly any of it can be fused,
   as each would only wait for the other.
2. `emission` puts all messages in one order that the program allows. What was received is passed
   on at once if nothing else has to come first: then both are one fused step. Slots of one
   message that lie next to each other become one step.
3. Each threadblock takes its steps in that order. So no threadblocks can wait for each other in a
   circle: of the messages that have not ended, the first has nothing left to wait for.
4. Dependencies between threadblocks are the program's, less those that the order inside a
   threadblock or an earlier wait implies.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.collectives.export.algorithm import (
    RECEIVING,
    SENDING,
    Algorithm,
    Gpu,
    Kind,
    Place,
    Step,
    Threadblock,
    Wait,
)
from headrace.collectives.export.buffers import NAMES, Layout, chunks_per_loop
from headrace.collectives.export.emission import Emission, Event
from headrace.collectives.export.limits import THREADBLOCKS
from headrace.collectives.export.pairing import paired_lanes, separated
from headrace.collectives.export.units import Units
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Program
from headrace.errors import ProgramError
from headrace.topology import BYTES_PER_MB

INSTANCES = (1, 2, 4, 8)
PROTOCOLS = ("Simple", "LL", "LL128")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to make of a program.

    Attributes
    ----------
    instances : parallel copies, each moving 1/instances of every chunk (5.6.2). For small sizes
        (where a sketch would say ``uc-max``) one, for large ones (``uc-min``) eight (5.8.3).
    in_place : for calls whose input and output overlap; out of place otherwise.
    buffered : rely on what every connection of NCCL holds: 2 chunks with the Simple protocol, 8
        with the others. Rings then take fewer rounds; what relies on more is refused. Not for
        MSCCL++, which holds nothing.
    name : what the algorithm is called; made up from the collective if empty.
    min_bytes, max_bytes : sizes that it serves; a `max_bytes` of 0 is no limit.
    """

    instances: int = 1
    in_place: bool = False
    buffered: bool = False
    protocol: str = "Simple"
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


def lowered(program: Program, target: Target, *, store_all: bool = False) -> Algorithm:
    """Return the threadblocks that run `program`.

    Parameters
    ----------
    store_all : also store what is only sent on (rrcs instead of rrs).

    Raises
    ------
    VerificationError : if the program does not do what it claims.
    ProgramError : if it cannot serve the call (all_to_all in place).
    """
    verify(program)
    demand = program.demand
    layout = Layout(demand=demand, in_place=target.in_place)
    units = Units.of(program)
    emission = _emitted(units, layout, target, store_all=store_all)
    gpus = [_gpu(rank, layout, emission) for rank in range(demand.ranks)]
    used = {tb.channel for gpu in gpus for tb in gpu.threadblocks}
    one = Algorithm(
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
    return instanced(one, target.instances, demand.chunks)


def _emitted(units: Units, layout: Layout, target: Target, *, store_all: bool) -> Emission:
    """Put everything in order, pairing only lanes of which most messages can be fused."""
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


def _fuses(events: list[Event]) -> bool:
    """Whether at least half of what is received is sent on by the same step."""
    received = [event.kind in SENDING for event in events if event.kind in RECEIVING]
    return 2 * sum(received) >= len(received)


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

    def place(at: Place, j: int) -> Place:
        if at.offset < 0:
            return at
        block, k = divmod(at.offset, chunks)
        return Place(at.buffer, block * chunks * instances + j * chunks + k)

    def step(s: Step, j: int, threadblocks: int) -> Step:
        wait = s.depends and Wait(s.depends.threadblock + j * threadblocks, s.depends.step)
        return replace(s, src=place(s.src, j), dst=place(s.dst, j), depends=wait)

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


def _gpu(rank: int, layout: Layout, emission: Emission) -> Gpu:
    streams = [s for s in emission.streams[rank] if s.events]
    waits = _waits([stream.events for stream in streams])
    threadblocks: list[Threadblock] = []
    for number, stream in enumerate(streams):
        steps = _steps(stream.events, waits, threadblock=number)
        threadblocks.append(
            Threadblock(
                id=number,
                send=stream.send,
                recv=stream.recv,
                channel=stream.channel,
                steps=steps,
            )
        )
    sizes = layout.sizes(rank)
    return Gpu(
        id=rank,
        input_chunks=sizes[0],
        output_chunks=sizes[1],
        scratch_chunks=_scratch_used(threadblocks),
        threadblocks=tuple(threadblocks),
    )


@dataclass(slots=True)
class _Waits:
    """By event: which events it waits for, its place, whether anyone waits for it."""

    on: dict[int, list[int]]
    at: dict[int, Wait]
    flagged: set[int]


def _waits(streams: Iterable[list[Event]]) -> _Waits:
    """Drop the waits that are implied, and number the steps with the nops that the rest need."""
    streams = list(streams)
    home = {event.number: (t, k) for t, s in enumerate(streams) for k, event in enumerate(s)}
    waits = _Waits(on={}, at={}, flagged=set())
    for t, stream in enumerate(streams):
        waited: dict[int, int] = {}
        position = 0
        for event in stream:
            needed: list[int] = []
            for on in sorted(event.after, reverse=True):
                other, k = home[on]
                if other != t and waited.get(other, -1) < k:
                    waited[other] = k
                    needed.append(on)
            position += max(1, len(needed))
            waits.on[event.number] = needed[::-1]
            waits.at[event.number] = Wait(t, position - 1)
            waits.flagged.update(needed)
    return waits


def _steps(events: list[Event], waits: _Waits, *, threadblock: int) -> tuple[Step, ...]:
    """Turn events into steps; all but the last of an event's waits are nops before it."""
    steps: list[Step] = []
    for event in events:
        assert waits.at[event.number].threadblock == threadblock
        on = [waits.at[number] for number in waits.on[event.number]]
        steps += [Step(kind=Kind.NOP, depends=wait) for wait in on[:-1]]
        steps.append(
            Step(
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
            for place in (step.src, step.dst):
                if place.buffer == "s" and step.kind is not Kind.NOP:
                    used = max(used, place.offset + step.count)
    return used
