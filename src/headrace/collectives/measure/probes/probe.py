"""Probes of a network, as programs of the executor.

A probe is a custom collective: a few flows of data and their acknowledgements, and nothing between
other ranks. The verifier proves it and the executor runs it like any other program, so what is
measured is the very path that data will take.

A flow sends n chunks in one of two manners (TACCL 5.3): one after another, each when the one
before has been acknowledged, or all at once with a single acknowledgement. A latency echo is the
first manner with chunks of `ACK_BYTES`; a bulk transfer is the second.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from headrace.artifact import columns_of
from headrace.collectives.demand import Demand, DemandRow
from headrace.collectives.program import (
    DEPENDENCY_COLUMNS,
    LANE_COLUMNS,
    STEP_COLUMNS,
    Direction,
    Op,
    Program,
)
from headrace.errors import InputError
from headrace.facades import offered_by, public_value

ACK_BYTES = 8
"""Bytes of an acknowledgement, and of an echo."""


@offered_by("headrace.collectives.measure")
class Manner(IntEnum):
    """Order of the chunks of a flow: each acknowledged before the next, or all at once."""

    ONE_AFTER_ANOTHER = 0
    AT_ONCE = 1


@offered_by("headrace.collectives.measure")
class Flow(NamedTuple):
    """Chunks of `chunk_bytes` bytes from rank `src` to rank `dst`."""

    src: int
    dst: int
    chunk_bytes: int


@public_value("headrace.collectives.measure")
class Probe:
    """Flows that run at the same time, `repeats` times over.

    At every rank the slots of what it sends come first, then those of what it receives, each in
    the order of the flows; data and acknowledgements alike.

    Raises
    ------
    InputError : if there is no flow, a flow is not between two ranks of the group, two flows join
        the same ranks (one would be the other's acknowledgement), or a count is below 1.
    """

    ranks: int
    manner: Manner
    chunks: int
    flows: tuple[Flow, ...]
    repeats: int = 1

    def __post_init__(self) -> None:
        for name in ("ranks", "chunks", "repeats"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, needs at least 1")
        if not self.flows:
            raise InputError("flows is empty, needs at least one")
        seen: set[frozenset[int]] = set()
        for index, flow in enumerate(self.flows):
            if flow.src == flow.dst or not (
                0 <= flow.src < self.ranks and 0 <= flow.dst < self.ranks
            ):
                raise InputError(
                    f"flows[{index}] is {flow.src} -> {flow.dst}, needs two different ranks "
                    f"of 0 to {self.ranks - 1}"
                )
            if flow.chunk_bytes < 1:
                raise InputError(
                    f"flows[{index}].chunk_bytes is {flow.chunk_bytes}, needs at least 1"
                )
            if frozenset(flow[:2]) in seen:
                raise InputError(
                    f"flows[{index}] joins ranks {flow.src} and {flow.dst} again; "
                    "two ranks can share one flow in a probe"
                )
            seen.add(frozenset(flow[:2]))

    @property
    def shape(self) -> tuple[int, Manner, int, tuple[tuple[int, int], ...]]:
        """Key of its program: equal shapes have equal programs, whatever the sizes."""
        return self.ranks, self.manner, self.chunks, tuple(flow[:2] for flow in self.flows)

    @property
    def is_echo(self) -> bool:
        """True if each run is one message and its acknowledgement: such runs need no barrier."""
        return self.chunks == 1 and self.manner is Manner.ONE_AFTER_ANOTHER

    @property
    def width(self) -> int:
        """Most flows that any rank takes part in."""
        ends = [rank for flow in self.flows for rank in flow[:2]]
        return max(ends.count(rank) for rank in set(ends))

    @property
    def demand(self) -> Demand:
        """The probe as a collective: item 2f is the data of flow f, 2f + 1 its acknowledgement."""
        width, before, after = self.width, list[DemandRow](), list[DemandRow]()
        for index, (flow, out, back) in enumerate(zip(self.flows, *self.positions(), strict=True)):
            for item, (src, src_block), (dst, dst_block) in (
                (2 * index, (flow.src, out), (flow.dst, back)),
                (2 * index + 1, (flow.dst, back), (flow.src, out)),
            ):
                before.append((src, src_block, item, (src,)))
                after.append((dst, width + dst_block, item, (src,)))
        return Demand.custom(
            ranks=self.ranks, slots=2 * width, before=before, after=after, chunks=self.chunks
        )

    def positions(self) -> tuple[list[int], list[int]]:
        """Return every flow's number among the flows of its source, and of its destination."""
        taken: dict[int, int] = {}
        numbers: tuple[list[int], list[int]] = ([], [])
        for flow in self.flows:
            for rank, mine in zip(flow[:2], numbers, strict=True):
                mine.append(taken.get(rank, 0))
                taken[rank] = mine[-1] + 1
        return numbers

    def block_bytes(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes `rank` sends and receives for each of its flows, (width,) int64 each."""
        sent, received = (np.zeros(self.width, dtype=np.int64) for _ in range(2))
        for flow, out, back in zip(self.flows, *self.positions(), strict=True):
            data, answer = self.chunks * flow.chunk_bytes, self.chunks * ACK_BYTES
            if rank == flow.src:
                sent[out], received[out] = data, answer
            elif rank == flow.dst:
                sent[back], received[back] = answer, data
        return sent, received

    def program(self) -> Program:
        """Return the program of this probe's shape."""
        return _Lanes(self).build()


def segments(
    sizes: Sequence[np.ndarray], chunks: int, inputs: int, outputs: int
) -> list[tuple[int, int, int, int]]:
    """Return the executor's segments for blocks packed from addresses `inputs` and `outputs`.

    `sizes` are one rank's `Probe.block_bytes`; one ``(address, bytes, 1, chunks)`` row per block:
    what it sends, then what it receives.
    """
    rows: list[tuple[int, int, int, int]] = []
    for address, blocks in zip((inputs, outputs), sizes, strict=True):
        for size in blocks.tolist():
            rows.append((address, size, 1, chunks))
            address += size
    return rows


class _Lanes:
    """Builder of the program: collects steps lane by lane, then numbers them."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        # (rank, direction, peer) -> [(op, slot, src_slot, count)]
        self.steps: dict[tuple[int, int, int], list[tuple[int, int, int, int]]] = {}
        # ((lane, position), (lane, position) awaited)
        self.waits: list[tuple[tuple[tuple[int, int, int], int], ...]] = []

    def build(self) -> Program:
        for flow, out, back in zip(self.probe.flows, *self.probe.positions(), strict=True):
            self._flow((flow.src, out), (flow.dst, back))
        return self._numbered()

    def _send(self, src: tuple[int, int], dst: tuple[int, int], chunk: int, count: int) -> None:
        """Send chunks [chunk, chunk + count) between two (rank, number among its flows)."""
        chunks = self.probe.chunks
        send = (Op.SEND, src[1] * chunks + chunk, -1, count)
        receive = (Op.RECV, (self.probe.width + dst[1]) * chunks + chunk, -1, count)
        self.steps.setdefault((src[0], Direction.SEND, dst[0]), []).append(send)
        self.steps.setdefault((dst[0], Direction.RECV, src[0]), []).append(receive)

    def _flow(self, src: tuple[int, int], dst: tuple[int, int]) -> None:
        ack_out, ack_in = (dst[0], Direction.SEND, src[0]), (src[0], Direction.RECV, dst[0])
        data_out, data_in = (src[0], Direction.SEND, dst[0]), (dst[0], Direction.RECV, src[0])
        chunks = self.probe.chunks
        for chunk in range(chunks):
            self._send(src, dst, chunk, 1)
        if self.probe.manner is Manner.AT_ONCE:
            self._send(dst, src, 0, chunks)
            self.waits.append(((ack_out, 0), (data_in, chunks - 1)))
            return
        for chunk in range(chunks):
            self._send(dst, src, chunk, 1)
            self.waits.append(((ack_out, chunk), (data_in, chunk)))
            if chunk > 0:
                self.waits.append(((data_out, chunk), (ack_in, chunk - 1)))

    def _messages(self, keys: list[tuple[int, int, int]]) -> list[int]:
        """Return message numbers, one for each send and its receive."""
        numbers: dict[tuple[tuple[int, int, int], int], int] = {}
        messages: list[int] = []
        for rank, direction, peer in keys:
            send = (peer, Direction.SEND, rank) if direction == Direction.RECV else None
            lane = send or (rank, direction, peer)
            messages += [
                numbers.setdefault((lane, position), len(numbers))
                for position in range(len(self.steps[rank, direction, peer]))
            ]
        return messages

    def _numbered(self) -> Program:
        keys = sorted(self.steps)
        starts = np.cumsum([0, *(len(self.steps[key]) for key in keys)]).tolist()
        first = dict(zip(keys, starts, strict=False))
        steps = [(lane, *step) for lane, key in enumerate(keys) for step in self.steps[key]]
        waits = sorted(
            (first[lane] + position, first[on_lane] + on_position)
            for (lane, position), (on_lane, on_position) in self.waits
        )
        numbered = zip(steps, self._messages(keys), strict=True)
        return Program(
            demand=self.probe.demand,
            scratch_slots=0,
            lanes=columns_of(((*key, 0) for key in keys), LANE_COLUMNS),
            steps=columns_of(((*step, message) for step, message in numbered), STEP_COLUMNS),
            dependencies=columns_of(waits, DEPENDENCY_COLUMNS),
        )
