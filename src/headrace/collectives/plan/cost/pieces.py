"""A program cut into pieces, with their dependencies: the simulator's input."""

from collections.abc import Iterator

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.program import Direction, Op, Program
from headrace.errors import TopologyError
from headrace.topology import BYTES_PER_MB, Topology

FORWARD_BYTES = 16 << 10
"""The executor forwards no less than this of a step that is still arriving."""

_MAX_PIECE_BYTES = 32 << 10
"""Largest piece, unless that makes too many."""

_PIECES_PER_STEP = 24
"""The largest step is cut at least so often, into no less than `FORWARD_BYTES` a piece: finer
pieces model streaming through short steps better."""

SEND, RECV = int(Direction.SEND), int(Direction.RECV)


class Pieces:
    """Columns of steps; the pieces of step s are ``first[s]`` to ``first[s + 1] - 1``.

    Attributes
    ----------
    lane, lane_start : of every step its lane; of every lane its first step (and the end).
    direction, local : of every step its lane's `Direction`; whether it is COPY or REDUCE.
    step_bytes, piece_mb : the size of every step, and of one of its pieces.
    mate : for every send its receive and the other way round; -1 for local steps.
    link : for every send and receive the topology's link; -1 for local steps.
    count, first : number of pieces of every step; index of the first.
    """

    def __init__(
        self, program: Program, topology: Topology, total_bytes: int, max_pieces: int
    ) -> None:
        steps = program.steps
        self._steps, self._depend = steps, program.dependencies
        self.lane = steps["lane"].astype(np.int64)
        self.lane_start = np.searchsorted(self.lane, np.arange(len(program.lanes["rank"]) + 1))
        self.direction = program.lanes["direction"][self.lane]
        self.local = (steps["op"] == Op.COPY) | (steps["op"] == Op.REDUCE)
        self.mate = mates_of(program)
        self.link = links_of(program, topology)
        self.step_bytes = steps["count"] * program.demand.chunk_bytes(total_bytes)
        size = self._piece_bytes(max_pieces)
        # Steps of the same size get the same number, so a receive as many as its send.
        self.count = np.maximum(np.ceil(self.step_bytes / size), 1).astype(np.int64)
        self.first = np.concatenate(([0], np.cumsum(self.count)))
        self.piece_mb = self.step_bytes / self.count / BYTES_PER_MB
        self._streams = self._streaming()

    def _piece_bytes(self, max_pieces: int) -> float:
        sent = self.step_bytes[self.direction == SEND]
        largest = float(sent.max(initial=0.0))
        size = min(_MAX_PIECE_BYTES, max(FORWARD_BYTES, largest / _PIECES_PER_STEP))
        while np.ceil(sent / size).sum() > max(max_pieces, len(sent)) and size < largest:
            size *= 1.25
        return size

    def _streaming(self) -> np.ndarray:
        """For every dependency whether it holds byte by byte, by the executor's rule."""
        step, on = self._depend["step"], self._depend["on"]
        slot, count = self._steps["slot"], self._steps["count"]
        same = (slot[step] == slot[on]) & (count[step] == count[on])
        return same & ~self.local[step] & ~self.local[on]

    def successors(self) -> tuple[list[int], list[int]]:
        """For every piece the next of its lane, and the one after; the number of all if none."""
        total = int(self.first[-1])
        lane_end = np.repeat(self.first[self.lane_start[self.lane + 1]], self.count)
        index = np.arange(total)
        after = np.where(index + 1 < lane_end, index + 1, total)
        after_next = np.where(index + 2 < lane_end, index + 2, total)
        return after.tolist(), after_next.tolist()

    def dependents(self) -> tuple[list[list[int]], list[list[int]]]:
        """For every step its dependents.

        First, the offsets from a piece to those that stream behind it; second, the first pieces of
        the steps that wait for all of it.
        """
        stream: list[list[int]] = [[] for _ in self.count]
        unstreamed: list[list[int]] = [[] for _ in self.count]
        target = self.first[self._depend["step"]]
        shift = target - self.first[self._depend["on"]]
        columns = (self._depend["on"], self._streams, shift, target)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for on, streams, by, to in rows:
            if streams:
                stream[on].append(by)
            else:
                unstreamed[on].append(to)
        return stream, unstreamed

    def pending(self) -> list[int]:
        """For every piece the number of signals it waits for; one more entry, which never runs.

        Signals: each dependency (one on a whole step only holds up the first piece); for a
        receive the arrival; that the lane's previous piece has begun (or ended, if not sends);
        for a send that the piece before that one has left, so that two are on their way at most.
        """
        steps = len(self.count)
        waits = self._depend["step"]
        by_step = np.bincount(waits[self._streams], minlength=steps) + (self.direction == RECV)
        pending = np.repeat(by_step, self.count)
        np.add.at(pending, self.first[waits[~self._streams]], 1)
        lane_first = np.repeat(self.first[self.lane_start[self.lane]], self.count)
        place = np.arange(len(pending)) - lane_first
        pending += place >= 1
        pending += (place >= 2) & np.repeat(self.direction == SEND, self.count)
        return [*pending.tolist(), 1 << 60]


def mates_of(program: Program) -> np.ndarray:
    """Return for every send its receive and the other way round; -1 for local steps.

    Raises
    ------
    ProgramError : if a lane has no partner, or their steps differ.
    """
    lanes = program.lanes
    lane_start = np.searchsorted(program.steps["lane"], np.arange(len(lanes["rank"]) + 1))
    columns = (lanes[name].tolist() for name in ("rank", "direction", "peer", "channel"))
    lane_of = {row: lane for lane, row in enumerate(zip(*columns, strict=True))}
    mate = np.full(len(program.steps["op"]), -1, dtype=np.int64)
    for (rank, direction, peer, channel), lane in lane_of.items():
        if direction not in (SEND, RECV):
            continue
        peer_lane = lane_of.get((peer, RECV if direction == SEND else SEND, rank, channel), -1)
        mine = slice(lane_start[lane], lane_start[lane + 1])
        theirs = (
            slice(lane_start[peer_lane], lane_start[peer_lane + 1])
            if peer_lane >= 0
            else slice(0, 0)
        )
        counts, expected = program.steps["count"][mine], program.steps["count"][theirs]
        if not np.array_equal(counts, expected):
            word = Direction(direction).name.lower()
            raise ProgramError(
                f"{word} lane {lane} (rank {rank}, peer {peer}, channel {channel}) has "
                f"{len(counts)} steps of {int(counts.sum())} slots, the peer's lane "
                f"{len(expected)} of {int(expected.sum())}: needs the same steps"
            )
        mate[mine] = np.arange(theirs.start, theirs.stop)
    return mate


def absent_link(program: Program, topology: Topology) -> tuple[int, int] | None:
    """Return the first (src, dst) that `program` sends over and `topology` lacks; None if none."""
    pairs = (pair for pair in _pairs(program) if pair is not None)
    return next((pair for pair in pairs if pair not in topology.link_index), None)


def links_of(program: Program, topology: Topology) -> np.ndarray:
    """Return for every send and receive its link in `topology`; -1 for local steps.

    Raises
    ------
    TopologyError : if there is no such link.
    """
    if (absent := absent_link(program, topology)) is not None:
        src, dst = absent
        raise TopologyError(
            f"the program sends from rank {src} to rank {dst}, topology '{topology.name}' has no "
            f"link {src} -> {dst}"
        )
    link_of_lane = [-1 if pair is None else topology.link_index[pair] for pair in _pairs(program)]
    return np.array(link_of_lane, dtype=np.int64)[program.steps["lane"]]


def _pairs(program: Program) -> Iterator[tuple[int, int] | None]:
    """Yield for every lane its (src, dst); None for local ones."""
    columns = (program.lanes[name].tolist() for name in ("rank", "direction", "peer"))
    for rank, direction, peer in zip(*columns, strict=True):
        if direction == Direction.LOCAL:
            yield None
        else:
            yield (rank, peer) if direction == SEND else (peer, rank)
