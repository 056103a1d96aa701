"""Structure of a program: lanes and steps paired, and checked for consistency.

The first part of the proof; the later parts work on the `Structure` that it returns. Conditions on
all steps are checked on whole columns at once; a row that fails is then examined by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from headrace.collectives.demand import Demand
from headrace.collectives.program import Direction, Op, Program
from headrace.errors import VerificationError

SEND, RECV, RECV_REDUCE, COPY, REDUCE = (int(op) for op in Op)
LOCAL_OPS = frozenset({COPY, REDUCE})

_ALLOWED = {
    Direction.SEND: frozenset({SEND}),
    Direction.RECV: frozenset({RECV, RECV_REDUCE}),
    Direction.LOCAL: LOCAL_OPS,
}

_Problem = tuple[np.ndarray, Callable[[int], str]]
"""(of every row whether it fails, a function that describes the failure of a row)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Structure:
    """A program as columns of int64, its lanes paired.

    Attributes
    ----------
    slots : data and scratch slots at every rank.
    lane_rank, direction, peer, channel : by lane.
    lane, op, slot, src_slot, count : by step.
    rank : by step, where it runs; never falls, as lanes are sorted by rank and steps by lane.
    position : by step, its place in its lane.
    message : by step, the number of the message that it is part of.
    partner : by step, the other half of a send and receive; -1 for local steps.
    waiting, on : by dependency, the waiting step and the awaited one; sorted.
    first_wait : (steps + 1,), a step's dependencies are rows ``first_wait[s]`` to
        ``first_wait[s + 1] - 1``.
    """

    demand: Demand
    slots: int
    lane_rank: np.ndarray
    direction: np.ndarray
    peer: np.ndarray
    channel: np.ndarray
    lane: np.ndarray
    op: np.ndarray
    slot: np.ndarray
    src_slot: np.ndarray
    count: np.ndarray
    rank: np.ndarray
    position: np.ndarray
    message: np.ndarray
    partner: np.ndarray
    waiting: np.ndarray
    on: np.ndarray
    first_wait: np.ndarray

    @classmethod
    def of(cls, program: Program) -> "Structure":
        """Check the structure of `program`.

        Raises
        ------
        VerificationError : if lanes do not pair, or a step or dependency does not fit.
        """
        _check_dimensions(program)
        lanes = {name: column.astype(np.int64) for name, column in program.lanes.items()}
        steps = {name: column.astype(np.int64) for name, column in program.steps.items()}
        lane_of = steps["lane"]
        first = np.searchsorted(lane_of, np.arange(len(lanes["rank"])))
        waiting = program.dependencies["step"].astype(np.int64)
        structure = cls(
            demand=program.demand,
            slots=program.demand.slots + program.scratch_slots,
            lane_rank=lanes["rank"],
            direction=lanes["direction"],
            peer=lanes["peer"],
            channel=lanes["channel"],
            lane=lane_of,
            op=steps["op"],
            slot=steps["slot"],
            src_slot=steps["src_slot"],
            count=steps["count"],
            rank=lanes["rank"][lane_of],
            position=np.arange(len(lane_of)) - first[lane_of],
            message=steps["message"],
            partner=np.full(len(lane_of), -1, dtype=np.int64),
            waiting=waiting,
            on=program.dependencies["on"].astype(np.int64),
            first_wait=np.searchsorted(waiting, np.arange(len(lane_of) + 1)),
        )
        by_key = _check_lanes(structure)
        _check_steps(structure)
        _pair_lanes(structure, by_key, first)
        _check_messages(structure)
        _check_dependencies(structure)
        return structure

    def after(self, step: int) -> list[int]:
        """Return the steps that `step` depends on."""
        return self.on[self.first_wait[step] : self.first_wait[step + 1]].tolist()

    def name_lane(self, lane: int) -> str:
        """Return, for example, ``rank 2, send lane to rank 3, channel 0``."""
        where = {
            Direction.SEND: f"send lane to rank {self.peer[lane]}",
            Direction.RECV: f"receive lane from rank {self.peer[lane]}",
            Direction.LOCAL: "local lane",
        }[Direction(int(self.direction[lane]))]
        return f"rank {self.lane_rank[lane]}, {where}, channel {self.channel[lane]}"

    def name(self, step: int) -> str:
        """Return the step's lane, position, op and slots in words."""
        text = f"{self.name_lane(int(self.lane[step]))}, step {self.position[step]}"
        op, count = int(self.op[step]), int(self.count[step])
        slots = name_slots(int(self.slot[step]), count)
        if op in LOCAL_OPS:
            slots += f" from {name_slots(int(self.src_slot[step]), count)}"
        return f"{text} ({Op(op).name} {slots})"


def name_slots(slot: int, count: int) -> str:
    """Return ``slot 3`` or ``slots 3..5``."""
    return f"slot {slot}" if count == 1 else f"slots {slot}..{slot + count - 1}"


def fail(message: str) -> NoReturn:
    """Raise the one error of this package."""
    raise VerificationError(message)


def _fail_first(problems: list[_Problem]) -> None:
    """Fail for the first row that has a problem, with the first of those that it has."""
    rows = [int(bad.argmax()) for bad, _ in problems if bad.any()]
    if rows:
        row = min(rows)
        fail(next(say(row) for bad, say in problems if bad[row]))


def _check_dimensions(program: Program) -> None:
    if program.scratch_slots < 0:
        fail(f"scratch_slots is {program.scratch_slots}, needs at least 0")
    for table in ("lanes", "steps", "dependencies"):
        for name, column in getattr(program, table).items():
            if column.ndim != 1:
                fail(f"{table}.{name} has {column.ndim} dimensions, needs 1")


def _check_lanes(s: Structure) -> dict[tuple[int, int, int, int], int]:
    """Return lane by (rank, direction, peer, channel)."""
    by_key: dict[tuple[int, int, int, int], int] = {}
    columns = (s.lane_rank, s.direction, s.peer, s.channel)
    for lane, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        rank, direction, peer, _ = key
        if (direction == Direction.LOCAL) != (peer == -1):
            need = "-1" if direction == Direction.LOCAL else "another rank"
            fail(f"{s.name_lane(lane)} (lane {lane}): peer is {peer}, needs {need}")
        if peer == rank:
            fail(f"{s.name_lane(lane)} (lane {lane}): a rank cannot send to itself, use COPY")
        if key in by_key:
            fail(f"{s.name_lane(lane)}: found twice (lanes {by_key[key]} and {lane}), needs one")
        by_key[key] = lane
    return by_key


def _check_steps(s: Structure) -> None:
    allowed = np.zeros((len(Direction), len(Op)), dtype=bool)
    for direction, ops in _ALLOWED.items():
        allowed[direction, sorted(ops)] = True
    local = np.isin(s.op, sorted(LOCAL_OPS))
    overlap = local & (np.abs(s.slot - s.src_slot) < s.count)

    def wrong_op(step: int) -> str:
        direction = Direction(int(s.direction[s.lane[step]]))
        names = " or ".join(sorted(Op(op).name for op in _ALLOWED[direction]))
        op_name = Op(int(s.op[step])).name
        return f"{s.name(step)}: op is {op_name}, a {direction.name} lane needs {names}"

    def source(step: int) -> str:
        need = "the slot to read" if local[step] else "-1"
        return f"{s.name(step)}: src_slot is {s.src_slot[step]}, needs {need}"

    def overlaps(step: int) -> str:
        read = name_slots(int(s.src_slot[step]), int(s.count[step]))
        return f"{s.name(step)}: reads {read} while it writes some of them"

    _fail_first(
        [
            (~allowed[s.direction[s.lane], s.op], wrong_op),
            *_range_problems(s, s.slot, np.ones(len(s.op), dtype=bool)),
            (local != (s.src_slot >= 0), source),
            *_range_problems(s, s.src_slot, local),
            (overlap, overlaps),
        ]
    )


def _range_problems(s: Structure, start: np.ndarray, which: np.ndarray) -> list[_Problem]:
    end, several = start + s.count, which & (s.count > 1)
    across = [(several & (start < edge) & (edge < end), edge) for edge in s.demand.buffers]
    # Chunks of one block differ in size by up to one element, scratch slots do not: a range of
    # several would lie elsewhere in scratch, byte by byte, than in the data.
    scratch = several & (start >= s.demand.slots) & (s.demand.chunks > 1)

    def words(step: int) -> str:
        return name_slots(int(start[step]), int(s.count[step]))

    def crosses(edge: int) -> Callable[[int], str]:
        return lambda step: f"{s.name(step)}: {words(step)} reach across buffers at slot {edge}"

    return [
        (
            which & (end > s.slots),
            lambda step: f"{s.name(step)}: covers {words(step)}, needs slots below {s.slots}",
        ),
        *((bad, crosses(edge)) for bad, edge in across),
        (
            scratch,
            lambda step: (
                f"{s.name(step)}: covers {s.count[step]} scratch slots, whose sizes differ from "
                "those of data slots; needs one step for each"
            ),
        ),
    ]


def _pair_lanes(
    s: Structure, by_key: dict[tuple[int, int, int, int], int], first: np.ndarray
) -> None:
    opposite = {Direction.SEND: Direction.RECV, Direction.RECV: Direction.SEND}
    length = np.bincount(s.lane, minlength=len(first)).tolist()
    twin = np.full(len(first), -1, dtype=np.int64)
    for (rank, direction, peer, channel), lane in by_key.items():
        if direction == Direction.LOCAL:
            continue
        peer_lane = by_key.get((peer, opposite[Direction(direction)], rank, channel))
        if peer_lane is None:
            word = "receive lane from" if direction == Direction.SEND else "send lane to"
            fail(
                f"{s.name_lane(lane)}: found no partner, "
                f"needs rank {peer}, {word} rank {rank}, channel {channel}"
            )
        if direction == Direction.SEND and length[lane] != length[peer_lane]:
            fail(
                f"{s.name_lane(lane)}: found {length[lane]} steps, but {length[peer_lane]} in "
                f"{s.name_lane(peer_lane)}; needs equally many"
            )
        twin[lane] = peer_lane
    paired = twin[s.lane]
    s.partner[:] = np.where(paired >= 0, first[paired] + s.position, -1)
    uneven = (s.op == SEND) & (s.count != s.count[s.partner])

    def differ(send: int) -> str:
        receive = int(s.partner[send])
        return (
            f"{s.name(send)}: sends {s.count[send]} chunks, but {s.name(receive)} takes "
            f"{s.count[receive]}; needs equal counts"
        )

    _fail_first([(uneven, differ)])


def _check_messages(s: Structure) -> None:
    """Every message is a run of steps of one lane, and of its partner in the other lane."""
    before = np.append(-1, s.message[:-1])
    follows = s.position > 0
    receives = (s.op == RECV) | (s.op == RECV_REDUCE)
    joined = follows & (before == s.message)
    # Receives aside, the first step of a run is its message's home, and the only one.
    starts = np.flatnonzero(~receives & ~joined)
    _, home, of = np.unique(s.message[starts], return_index=True, return_inverse=True)
    homes = np.arange(len(s.op))
    homes[starts] = starts[home[of]]

    def falls(step: int) -> str:
        return (
            f"{s.name(step)}: is of message {s.message[step]}, after one of message "
            f"{before[step]}; needs numbers that do not fall within a lane"
        )

    def differs(step: int) -> str:
        sender = int(s.partner[step])
        return (
            f"{s.name(step)}: is of message {s.message[step]}, but {s.name(sender)}, which feeds "
            f"it, of message {s.message[sender]}; needs the same at both ends"
        )

    def local(step: int) -> str:
        return f"{s.name(step)}: is of the message before it; needs one of its own, being local"

    def scattered(step: int) -> str:
        return (
            f"{s.name(step)}: is of message {s.message[step]}, as is {s.name(int(homes[step]))}; "
            "needs the steps of a message one after another in one lane"
        )

    _fail_first(
        [
            (follows & (before > s.message), falls),
            (receives & (s.message[s.partner] != s.message), differs),
            (joined & (s.partner < 0), local),
            (homes != np.arange(len(s.op)), scattered),
        ]
    )


def _check_dependencies(s: Structure) -> None:
    key = s.waiting * max(1, len(s.lane)) + s.on
    unsorted = np.append(False, np.diff(key) < 0) if len(key) else np.zeros(0, dtype=bool)

    def order(row: int) -> str:
        return f"dependencies row {row} ({s.waiting[row]} on {s.on[row]}) is not in sorted order"

    def elsewhere(row: int) -> str:
        return (
            f"{s.name(int(s.waiting[row]))} depends on {s.name(int(s.on[row]))}: needs a step of "
            "the same rank (only a message orders steps of different ranks)"
        )

    _fail_first([(unsorted, order)])
    _fail_first([(s.rank[s.waiting] != s.rank[s.on], elsewhere)])
