"""Probes: what to send to learn about a network, as programs of the executor.

A probe is an uneven all-to-all in which only a few blocks hold anything: the probed flows' and
their acknowledgements'. The verifier proves it like any other program, the executor runs it like
any other, and so what is measured is the very path that data will take.

A flow sends n chunks in one of two manners (TACCL 5.3): one after another, each when the one
before has been acknowledged, or all at once with a single acknowledgement. A latency echo is the
first manner with chunks of `ACK_BYTES`; a bulk transfer is the second.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.program import Direction, Op, Program
from headrace.errors import InputError

ACK_BYTES = 8
"""Bytes of an acknowledgement, and of an echo."""

BlockBytes = np.ndarray
"""(ranks, ranks) of int64: bytes that rank `row` sends to rank `column`."""


class Manner(IntEnum):
    """How the chunks of a flow follow each other."""

    ONE_AFTER_ANOTHER = 0
    AT_ONCE = 1


class Flow(NamedTuple):
    """Chunks of `chunk_bytes` bytes from rank `src` to rank `dst`."""

    src: int
    dst: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Flows that run at the same time, `repeats` times over.

    Raises
    ------
    InputError : if a flow is not between two ranks of the group, two flows join the same ranks
        (one would be the other's acknowledgement), or a count is below 1.
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
        """What its program depends on: equal shapes, equal programs, whatever the sizes."""
        return self.ranks, self.manner, self.chunks, tuple(flow[:2] for flow in self.flows)

    @property
    def demand(self) -> Demand:
        """The all-to-all that the probe is."""
        return Demand(collective=Collective.ALL_TO_ALL, ranks=self.ranks, chunks=self.chunks)

    def block_bytes(self) -> BlockBytes:
        """Bytes of every block: flows and their acknowledgements; zero elsewhere."""
        sizes = np.zeros((self.ranks, self.ranks), dtype=np.int64)
        for flow in self.flows:
            sizes[flow.src, flow.dst] = self.chunks * flow.chunk_bytes
            sizes[flow.dst, flow.src] = self.chunks * ACK_BYTES
        return sizes

    def program(self) -> Program:
        """Return the program of this probe's shape."""
        return _Lanes(self).build()


def segments(
    sizes: BlockBytes, rank: int, chunks: int, inputs: int, outputs: int
) -> list[tuple[int, int, int, int]]:
    """Return the executor's segments for blocks packed from addresses `inputs` and `outputs`.

    One ``(address, bytes, 1, chunks)`` row per block: what `rank` sends, then what it receives.
    """
    rows: list[tuple[int, int, int, int]] = []
    for address, blocks in ((inputs, sizes[rank]), (outputs, sizes[:, rank])):
        for size in blocks.tolist():
            rows.append((address, size, 1, chunks))
            address += size
    return rows


class _Lanes:
    """Collects steps lane by lane, then numbers them."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.half = probe.ranks * probe.chunks
        # (rank, direction, peer) -> [(op, slot, src_slot, count)]
        self.steps: dict[tuple[int, int, int], list[tuple[int, int, int, int]]] = {}
        # ((lane, position), (lane, position) awaited)
        self.waits: list[tuple[tuple[tuple[int, int, int], int], ...]] = []

    def build(self) -> Program:
        flows = {(flow.src, flow.dst) for flow in self.probe.flows}
        ranks, chunks = self.probe.ranks, self.probe.chunks
        for rank in range(ranks):
            copy = (Op.COPY, self.half + rank * chunks, rank * chunks, chunks)
            self.steps[rank, Direction.LOCAL, -1] = [copy]
        for src in range(ranks):
            for dst in range(ranks):
                if src != dst and not {(src, dst), (dst, src)} & flows:
                    self._send(src, dst, 0, chunks)
        for src, dst in sorted(flows):
            # a flow starts when everybody has sent its empty blocks, so that flows overlap
            for peer in range(ranks):
                if peer != src and not {(src, peer), (peer, src)} & flows:
                    start, empty = (src, Direction.SEND, dst), (src, Direction.RECV, peer)
                    self.waits.append(((start, 0), (empty, 0)))
            self._flow(src, dst)
        return self._numbered()

    def _send(self, src: int, dst: int, chunk: int, count: int) -> None:
        """Send chunks [chunk, chunk + count) of the block from src to dst."""
        chunks = self.probe.chunks
        send = (Op.SEND, dst * chunks + chunk, -1, count)
        receive = (Op.RECV, self.half + src * chunks + chunk, -1, count)
        self.steps.setdefault((src, Direction.SEND, dst), []).append(send)
        self.steps.setdefault((dst, Direction.RECV, src), []).append(receive)

    def _flow(self, src: int, dst: int) -> None:
        ack_out, ack_in = (dst, Direction.SEND, src), (src, Direction.RECV, dst)
        data_out, data_in = (src, Direction.SEND, dst), (dst, Direction.RECV, src)
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

    def _messages(self, keys: list[tuple[int, int, int]]) -> np.ndarray:
        """Number every step by itself, a send and its receive alike."""
        numbers: dict[tuple[tuple[int, int, int], int], int] = {}
        made: list[int] = []
        for rank, direction, peer in keys:
            send = (peer, Direction.SEND, rank) if direction == Direction.RECV else None
            lane = send or (rank, direction, peer)
            made += [
                numbers.setdefault((lane, position), len(numbers))
                for position in range(len(self.steps[rank, direction, peer]))
            ]
        return np.array(made, dtype=np.int32)

    def _numbered(self) -> Program:
        keys = sorted(self.steps)
        starts = np.cumsum([0, *(len(self.steps[key]) for key in keys)]).tolist()
        first = dict(zip(keys, starts, strict=False))
        rows = [(lane, *step) for lane, key in enumerate(keys) for step in self.steps[key]]
        waits = sorted(
            (first[lane] + position, first[on_lane] + on_position)
            for (lane, position), (on_lane, on_position) in self.waits
        )
        lanes = np.array([(*key, 0) for key in keys], dtype=np.int32).reshape(-1, 4)
        steps = np.array(rows, dtype=np.int32).reshape(-1, 5)
        dependencies = np.array(waits, dtype=np.int32).reshape(-1, 2)
        return Program(
            demand=self.probe.demand,
            scratch_slots=0,
            lanes={
                "rank": lanes[:, 0].copy(),
                "direction": lanes[:, 1].astype(np.uint8),
                "peer": lanes[:, 2].copy(),
                "channel": lanes[:, 3].copy(),
            },
            steps={
                "lane": steps[:, 0].copy(),
                "op": steps[:, 1].astype(np.uint8),
                "slot": steps[:, 2].copy(),
                "src_slot": steps[:, 3].copy(),
                "count": steps[:, 4].copy(),
                "message": self._messages(keys),
            },
            dependencies={"step": dependencies[:, 0].copy(), "on": dependencies[:, 1].copy()},
        )
