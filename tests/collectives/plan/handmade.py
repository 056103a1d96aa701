"""Programs written by hand: drafts that tests can change freely, and a few known algorithms.

Independent of `plan.lower` and of the templates, so that the verifier is tested against
something that shares no mistake with them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.program import (
    DEPENDENCY_COLUMNS,
    LANE_COLUMNS,
    STEP_COLUMNS,
    Direction,
    Op,
    Program,
    Transfer,
)

Key = tuple[int, int, int, int]
"""(rank, direction, peer, channel) of a lane."""


@dataclass(eq=False, slots=True)
class Step:
    """One step; `on` are the steps that it depends on."""

    op: int
    slot: int
    src_slot: int = -1
    count: int = 1
    on: list["Step"] = field(default_factory=list)
    joined: bool = False
    """True if it belongs to the message of the step before it in its lane."""

    @property
    def ranges(self) -> list[tuple[range, bool]]:
        """(slots, written) for each range that the step touches."""
        slots = range(self.slot, self.slot + self.count)
        if self.op in (Op.COPY, Op.REDUCE):
            return [(range(self.src_slot, self.src_slot + self.count), False), (slots, True)]
        return [(slots, self.op != Op.SEND)]


class Draft:
    """A program that can still be changed."""

    def __init__(self, demand: Demand, scratch_slots: int = 0) -> None:
        self.demand = demand
        self.scratch_slots = scratch_slots
        self.lanes: dict[Key, list[Step]] = {}

    @classmethod
    def of(cls, program: Program) -> "Draft":
        """Take a program apart."""
        made = cls(program.demand, program.scratch_slots)
        columns = (program.lanes[name].tolist() for name in LANE_COLUMNS)
        keys = list(zip(*columns, strict=True))
        made.lanes = {key: [] for key in keys}
        rows = zip(*(program.steps[name].tolist() for name in STEP_COLUMNS), strict=True)
        steps: list[Step] = []
        last = (-1, -1)
        for lane, op, slot, src_slot, count, message in rows:
            steps.append(Step(op, slot, src_slot, count, joined=last == (lane, message)))
            made.lanes[keys[lane]].append(steps[-1])
            last = (lane, message)
        edges = program.dependencies
        for step, on in zip(edges["step"].tolist(), edges["on"].tolist(), strict=True):
            steps[step].on.append(steps[on])
        return made

    def lane(self, rank: int, direction: Direction, peer: int, channel: int = 0) -> list[Step]:
        return self.lanes.setdefault((rank, int(direction), peer, channel), [])

    def transfer(
        self, move: Transfer, send_on: Iterable[Step] = (), receive_on: Iterable[Step] = ()
    ) -> tuple[Step, Step]:
        """Append both halves of a transfer and return them (twice the same if it is local)."""
        if move.src == move.dst:
            op = Op.REDUCE if move.reduce else Op.COPY
            on = [*send_on, *receive_on]
            step = Step(op, move.dst_slot, move.src_slot, move.count, on, move.joined)
            self.lane(move.src, Direction.LOCAL, -1, move.channel).append(step)
            return step, step
        send = Step(Op.SEND, move.src_slot, -1, move.count, list(send_on), move.joined)
        op = Op.RECV_REDUCE if move.reduce else Op.RECV
        receive = Step(op, move.dst_slot, -1, move.count, list(receive_on), move.joined)
        self.lane(move.src, Direction.SEND, move.dst, move.channel).append(send)
        self.lane(move.dst, Direction.RECV, move.src, move.channel).append(receive)
        return send, receive

    def copy(self) -> "Draft":
        twin = Draft(self.demand, self.scratch_slots)
        new = {
            id(s): Step(s.op, s.slot, s.src_slot, s.count, joined=s.joined)
            for lane in self.lanes.values()
            for s in lane
        }
        for key, lane in self.lanes.items():
            twin.lanes[key] = [new[id(s)] for s in lane]
            for s in lane:
                new[id(s)].on = [new[id(other)] for other in s.on]
        return twin

    def build(self) -> Program:
        """Return the program; dependencies on steps that are no longer in it are left out."""
        keys = sorted(self.lanes)
        steps = [(at, step) for at, key in enumerate(keys) for step in self.lanes[key]]
        index = {id(step): k for k, (_, step) in enumerate(steps)}
        edges = sorted(
            {(k, index[id(on)]) for k, (_, s) in enumerate(steps) for on in s.on if id(on) in index}
        )
        numbers = self._messages(keys)
        rows = [(at, int(s.op), s.slot, s.src_slot, s.count, numbers[id(s)]) for at, s in steps]
        return Program(
            demand=self.demand,
            scratch_slots=self.scratch_slots,
            lanes=_table(keys, LANE_COLUMNS),
            steps=_table(rows, STEP_COLUMNS),
            dependencies=_table(edges, DEPENDENCY_COLUMNS),
        )

    def _messages(self, keys: list[Key]) -> dict[int, int]:
        """Number messages lane by lane; a receive as its send, as far as both are joined alike."""
        numbers: dict[int, int] = {}
        made = -1
        # Receive lanes come last, as the others give the numbers.
        for key in sorted(keys, key=lambda key: key[1] == Direction.RECV):
            rank, direction, peer, channel = key
            twin = (peer, int(Direction.SEND), rank, channel)
            sends = self.lanes.get(twin, []) if direction == Direction.RECV else []
            number = -1
            for k, step in enumerate(self.lanes[key]):
                send = sends[k] if k < len(sends) else None
                if send is not None and (send.joined == step.joined or not number + 1):
                    number = numbers[id(send)]
                elif not step.joined or number < 0:
                    number = made = made + 1
                numbers[id(step)] = number
        return numbers


def _table(rows: list, columns: dict[str, np.dtype]) -> dict[str, np.ndarray]:
    values = np.array(rows, dtype=np.int64).reshape(len(rows), len(columns))
    return {name: values[:, k].astype(dtype) for k, (name, dtype) in enumerate(columns.items())}


def draft(demand: Demand, moves: Iterable[Transfer], scratch_slots: int = 0) -> Draft:
    """Lower `moves` in the plainest way: each step depends on the accesses it conflicts with."""
    made = Draft(demand, scratch_slots)
    written: dict[tuple[int, int], Step] = {}
    read: dict[tuple[int, int], list[Step]] = {}
    for move in moves:
        send, receive = made.transfer(move)
        sides = ((move.src, send), (move.dst, receive))
        for rank, step in sides if send is not receive else sides[:1]:
            _depend(rank, step, written, read)
    return made


def _depend(
    rank: int,
    step: Step,
    written: dict[tuple[int, int], Step],
    read: dict[tuple[int, int], list[Step]],
) -> None:
    for slots, is_write in step.ranges:
        for slot in slots:
            at = (rank, slot)
            before = [written[at]] if at in written else []
            if is_write:
                before += read.pop(at, [])
                written[at] = step
            else:
                read.setdefault(at, []).append(step)
            step.on += [other for other in before if other not in step.on and other is not step]


def ring_allreduce(ranks: int, chunks: int | None = None, channels: int = 1) -> Draft:
    """Reduce-scatter, then allgather, each of n - 1 rounds; chunk c starts at rank c % n."""
    chunks = chunks or ranks
    moves = []
    for turn in range(2 * (ranks - 1)):
        for chunk in range(chunks):
            src = (chunk + turn) % ranks
            dst, reduce = (src + 1) % ranks, turn < ranks - 1
            moves.append(Transfer(src, dst, chunk, chunk, reduce, 1, chunk % channels))
    return draft(Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=chunks), moves)


def ring_allgather(ranks: int, chunks: int = 1) -> Draft:
    """n - 1 rounds of whole blocks."""
    moves = []
    for turn in range(ranks - 1):
        for src in range(ranks):
            slot = (src - turn) % ranks * chunks
            moves.append(Transfer(src, (src + 1) % ranks, slot, slot, False, chunks))
    return draft(Demand(collective=Collective.ALLGATHER, ranks=ranks, chunks=chunks), moves)


def ring_reduce_scatter(ranks: int, chunks: int = 1) -> Draft:
    """n - 1 rounds, block b ends at rank b."""
    moves = []
    for turn in range(ranks - 1):
        for block in range(ranks):
            src, slot = (block + 1 + turn) % ranks, block * chunks
            moves.append(Transfer(src, (src + 1) % ranks, slot, slot, True, chunks))
    return draft(Demand(collective=Collective.REDUCE_SCATTER, ranks=ranks, chunks=chunks), moves)


def tree_broadcast(ranks: int, chunks: int = 2) -> Draft:
    """A binomial tree from rank 0, chunk by chunk."""
    moves = []
    for chunk in range(chunks):
        for move in _binomial(ranks):
            moves.append(Transfer(*move, chunk, chunk))
    return draft(Demand(collective=Collective.BROADCAST, ranks=ranks, chunks=chunks), moves)


def tree_allreduce(ranks: int, chunks: int = 2) -> Draft:
    """Reduce along a binomial tree to rank 0, and broadcast back, chunk by chunk."""
    moves = []
    for chunk in range(chunks):
        down = list(_binomial(ranks))
        moves += [Transfer(dst, src, chunk, chunk, True) for src, dst in reversed(down)]
        moves += [Transfer(src, dst, chunk, chunk) for src, dst in down]
    return draft(Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=chunks), moves)


def tree_reduce(ranks: int, chunks: int = 2, root: int = 0) -> Draft:
    """Reduce along a binomial tree to `root`."""
    moves = []
    for chunk in range(chunks):
        for src, dst in reversed(list(_binomial(ranks))):
            from_, to = (dst + root) % ranks, (src + root) % ranks
            moves.append(Transfer(from_, to, chunk, chunk, True))
    demand = Demand(collective=Collective.REDUCE, ranks=ranks, chunks=chunks, root=root)
    return draft(demand, moves)


def _binomial(ranks: int) -> Iterable[tuple[int, int]]:
    distance = 1
    while distance < ranks:
        for src in range(distance):
            if src + distance < ranks:
                yield src, src + distance
        distance *= 2


def halving_doubling(ranks: int) -> Draft:
    """Recursive halving and doubling of n slots over n = 2^k ranks, ranges of many chunks.

    Both halves of an exchange would have to be read before either is written, so what arrives
    goes to the half that is not sent.
    """
    moves: list[Transfer] = []
    back: list[list[Transfer]] = []
    low, distance = [0] * ranks, ranks // 2
    while distance:
        forth, again = [], []
        for rank in range(ranks):
            peer, keeps_upper = rank ^ distance, bool(rank & distance)
            given = low[rank] + (0 if keeps_upper else distance)
            forth.append(Transfer(rank, peer, given, given, True, distance))
            kept = low[rank] + (distance if keeps_upper else 0)
            again.append(Transfer(rank, peer, kept, kept, False, distance))
        low = [at + (distance if r & distance else 0) for r, at in enumerate(low)]
        moves += forth
        back.append(again)
        distance //= 2
    moves += [move for again in reversed(back) for move in again]
    return draft(Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=ranks), moves)


def direct_all_to_all(ranks: int, chunks: int = 1) -> Draft:
    """Every rank sends to every other; the own block is copied."""
    half = ranks * chunks
    moves = [
        Transfer(
            src, (src + k) % ranks, (src + k) % ranks * chunks, half + src * chunks, False, chunks
        )
        for k in range(ranks)
        for src in range(ranks)
    ]
    return draft(Demand(collective=Collective.ALL_TO_ALL, ranks=ranks, chunks=chunks), moves)


def relayed_all_to_all() -> Draft:
    """Three ranks; what 0 and 2 have for each other goes through scratch at rank 1."""
    moves = [Transfer(r, r, r, 3 + r) for r in range(3)]
    moves += [
        Transfer(0, 1, 1, 3),
        Transfer(1, 0, 0, 4),
        Transfer(1, 2, 2, 4),
        Transfer(2, 1, 1, 5),
    ]
    for src, dst in ((0, 2), (2, 0)):
        moves += [Transfer(src, 1, dst, 6), Transfer(1, dst, 6, 3 + src)]
    demand = Demand(collective=Collective.ALL_TO_ALL, ranks=3)
    return draft(demand, moves, scratch_slots=1)


def scratch_allreduce(ranks: int) -> Draft:
    """All vectors go to scratch at rank 0, are reduced there locally, and return."""
    moves = []
    for chunk in range(2):
        for src in range(1, ranks):
            moves.append(Transfer(src, 0, chunk, 2 + chunk))
            moves.append(Transfer(0, 0, 2 + chunk, chunk, True))
        moves += [Transfer(0, dst, chunk, chunk, channel=chunk) for dst in range(1, ranks)]
    demand = Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=2)
    return draft(demand, moves, scratch_slots=2)


def gather_to(root: int, ranks: int) -> Draft:
    """Blocks travel to `root` along a line through all ranks."""
    moves = []
    for rank in range(ranks):
        at, toward = rank, 1 if rank < root else -1
        while at != root:
            moves.append(Transfer(at, at + toward, rank, rank))
            at += toward
    return draft(Demand(collective=Collective.GATHER, ranks=ranks, root=root), moves)


def scatter_from(root: int, ranks: int) -> Draft:
    """The opposite of `gather_to`."""
    moves = []
    for rank in range(ranks):
        at, toward = root, 1 if rank > root else -1
        while at != rank:
            moves.append(Transfer(at, at + toward, rank, rank))
            at += toward
    return draft(Demand(collective=Collective.SCATTER, ranks=ranks, root=root), moves)


def all_drafts() -> dict[str, Draft]:
    """Return correct programs of many kinds, by name."""
    return {
        "ring allreduce 2": ring_allreduce(2),
        "ring allreduce 3": ring_allreduce(3),
        "ring allreduce 5": ring_allreduce(5),
        "ring allreduce 4, 2 channels": ring_allreduce(4, 6, channels=2),
        "ring allgather 4": ring_allgather(4),
        "ring allgather 3 x 2": ring_allgather(3, 2),
        "ring reduce-scatter 4": ring_reduce_scatter(4),
        "ring reduce-scatter 3 x 2": ring_reduce_scatter(3, 2),
        "tree broadcast 5": tree_broadcast(5),
        "tree broadcast 8": tree_broadcast(8, 3),
        "tree allreduce 4": tree_allreduce(4),
        "tree allreduce 7": tree_allreduce(7, 3),
        "tree reduce 6": tree_reduce(6, 3, root=2),
        "halving-doubling 2": halving_doubling(2),
        "halving-doubling 4": halving_doubling(4),
        "halving-doubling 8": halving_doubling(8),
        "direct all-to-all 4": direct_all_to_all(4),
        "direct all-to-all 3 x 2": direct_all_to_all(3, 2),
        "relayed all-to-all 3": relayed_all_to_all(),
        "scratch allreduce 3": scratch_allreduce(3),
        "scratch allreduce 4": scratch_allreduce(4),
        "gather 5": gather_to(1, 5),
        "scatter 5": scatter_from(3, 5),
    }
