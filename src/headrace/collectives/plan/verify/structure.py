"""The shape of a program: which lanes and steps belong together, and whether they fit.

The first part of the proof; the later parts work on the `Structure` that it returns.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Structure:
    """A program as plain lists, its lanes paired.

    Attributes
    ----------
    slots : data and scratch slots at every rank.
    lane_rank, direction, peer, channel : by lane.
    lane, op, slot, src_slot, count : by step.
    position : by step, its place in its lane.
    message : by step, the number of the message that it is part of.
    partner : by step, the other half of a send and receive; -1 for local steps.
    after : by step, the steps it depends on.
    """

    demand: Demand
    slots: int
    lane_rank: list[int]
    direction: list[int]
    peer: list[int]
    channel: list[int]
    lane: list[int]
    op: list[int]
    slot: list[int]
    src_slot: list[int]
    count: list[int]
    position: list[int]
    message: list[int]
    partner: list[int]
    after: list[list[int]]

    @classmethod
    def of(cls, program: Program) -> "Structure":
        """Check the shape of `program`.

        Raises
        ------
        VerificationError : if lanes do not pair, or a step or dependency does not fit.
        """
        _check_dimensions(program)
        lanes, steps = program.lanes, program.steps
        lane_of = steps["lane"]
        first = np.searchsorted(lane_of, np.arange(len(lanes["rank"])))
        position = np.arange(len(lane_of)) - first[lane_of]
        structure = cls(
            demand=program.demand,
            slots=program.demand.slots + program.scratch_slots,
            lane_rank=lanes["rank"].tolist(),
            direction=lanes["direction"].tolist(),
            peer=lanes["peer"].tolist(),
            channel=lanes["channel"].tolist(),
            lane=lane_of.tolist(),
            op=steps["op"].tolist(),
            slot=steps["slot"].tolist(),
            src_slot=steps["src_slot"].tolist(),
            count=steps["count"].tolist(),
            position=position.tolist(),
            message=steps["message"].tolist(),
            partner=[-1] * len(lane_of),
            after=_empty_lists(len(lane_of)),
        )
        by_key = _check_lanes(structure)
        _check_steps(structure)
        _pair_lanes(structure, by_key, np.bincount(lane_of, minlength=len(first)).tolist(), first)
        _check_messages(structure)
        _read_dependencies(structure, program)
        return structure

    def rank(self, step: int) -> int:
        """Return the rank that `step` runs at."""
        return self.lane_rank[self.lane[step]]

    def name_lane(self, lane: int) -> str:
        """Return, for example, ``rank 2, send lane to rank 3, channel 0``."""
        where = {
            Direction.SEND: f"send lane to rank {self.peer[lane]}",
            Direction.RECV: f"receive lane from rank {self.peer[lane]}",
            Direction.LOCAL: "local lane",
        }[Direction(self.direction[lane])]
        return f"rank {self.lane_rank[lane]}, {where}, channel {self.channel[lane]}"

    def name(self, step: int) -> str:
        """Return the step's lane, position, op and slots in words."""
        text = f"{self.name_lane(self.lane[step])}, step {self.position[step]}"
        op, slots = self.op[step], name_slots(self.slot[step], self.count[step])
        if op in LOCAL_OPS:
            slots += f" from {name_slots(self.src_slot[step], self.count[step])}"
        return f"{text} ({Op(op).name} {slots})"


def name_slots(slot: int, count: int) -> str:
    """Return ``slot 3`` or ``slots 3..5``."""
    return f"slot {slot}" if count == 1 else f"slots {slot}..{slot + count - 1}"


def fail(message: str) -> NoReturn:
    """Raise the one error of this package."""
    raise VerificationError(message)


def _empty_lists(count: int) -> list[list[int]]:
    return [[] for _ in range(count)]


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
    for lane, key in enumerate(zip(s.lane_rank, s.direction, s.peer, s.channel, strict=True)):
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
    edges = s.demand.buffers
    for step, op in enumerate(s.op):
        direction = Direction(s.direction[s.lane[step]])
        if op not in _ALLOWED[direction]:
            allowed = " or ".join(sorted(Op(op).name for op in _ALLOWED[direction]))
            fail(f"{s.name(step)}: op is {Op(op).name}, a {direction.name} lane needs {allowed}")
        slot, src, count = s.slot[step], s.src_slot[step], s.count[step]
        _check_range(s, step, slot, edges)
        if op not in LOCAL_OPS:
            if src != -1:
                fail(f"{s.name(step)}: src_slot is {src}, needs -1")
            continue
        if src < 0:
            fail(f"{s.name(step)}: src_slot is {src}, needs the slot to read")
        _check_range(s, step, src, edges)
        if abs(slot - src) < count:
            fail(f"{s.name(step)}: reads {name_slots(src, count)} while it writes some of them")


def _check_range(s: Structure, step: int, slot: int, edges: tuple[int, ...]) -> None:
    count = s.count[step]
    if slot + count > s.slots:
        fail(f"{s.name(step)}: covers {name_slots(slot, count)}, needs slots below {s.slots}")
    if count == 1:
        return
    for edge in edges:
        if slot < edge < slot + count:
            fail(f"{s.name(step)}: {name_slots(slot, count)} reach across buffers at slot {edge}")
    # Chunks of one block differ in size by up to one element, scratch slots do not: a range of
    # several would lie elsewhere in scratch, byte by byte, than in the data.
    if slot >= s.demand.slots and s.demand.chunks > 1:
        fail(
            f"{s.name(step)}: covers {count} scratch slots, whose sizes differ from those of data "
            "slots; needs one step for each"
        )


def _pair_lanes(
    s: Structure,
    by_key: dict[tuple[int, int, int, int], int],
    steps_of_lane: list[int],
    first: np.ndarray,
) -> None:
    opposite = {Direction.SEND: Direction.RECV, Direction.RECV: Direction.SEND}
    for (rank, direction, peer, channel), lane in by_key.items():
        if direction == Direction.LOCAL:
            continue
        other = by_key.get((peer, opposite[Direction(direction)], rank, channel))
        if other is None:
            word = "receive lane from" if direction == Direction.SEND else "send lane to"
            fail(
                f"{s.name_lane(lane)}: found no partner, "
                f"needs rank {peer}, {word} rank {rank}, channel {channel}"
            )
        if direction == Direction.RECV:
            continue
        sends, receives = steps_of_lane[lane], steps_of_lane[other]
        if sends != receives:
            fail(
                f"{s.name_lane(lane)}: found {sends} steps, but {receives} in "
                f"{s.name_lane(other)}; needs equally many"
            )
        for k in range(sends):
            _pair_steps(s, int(first[lane]) + k, int(first[other]) + k)


def _pair_steps(s: Structure, send: int, receive: int) -> None:
    if s.count[send] != s.count[receive]:
        fail(
            f"{s.name(send)}: sends {s.count[send]} chunks, but {s.name(receive)} takes "
            f"{s.count[receive]}; needs equal counts"
        )
    s.partner[send], s.partner[receive] = receive, send


def _check_messages(s: Structure) -> None:
    """Every message is a run of steps of one lane, and of its partner in the other lane."""
    home: dict[int, int] = {}  # message -> first step, receives aside
    for step, message in enumerate(s.message):
        partner = s.partner[step]
        follows = s.position[step] > 0
        if follows and s.message[step - 1] > message:
            fail(
                f"{s.name(step)}: is of message {message}, after one of message "
                f"{s.message[step - 1]}; needs numbers that do not fall within a lane"
            )
        joined = follows and s.message[step - 1] == message
        if s.op[step] in (RECV, RECV_REDUCE):
            if s.message[partner] != message:
                fail(
                    f"{s.name(step)}: is of message {message}, but {s.name(partner)}, which feeds "
                    f"it, of message {s.message[partner]}; needs the same at both ends"
                )
            continue
        if joined and partner < 0:
            fail(f"{s.name(step)}: is of the message before it; needs one of its own, being local")
        if not joined and home.setdefault(message, step) != step:
            fail(
                f"{s.name(step)}: is of message {message}, as is {s.name(home[message])}; needs "
                "the steps of a message one after another in one lane"
            )


def _read_dependencies(s: Structure, program: Program) -> None:
    step, on = program.dependencies["step"], program.dependencies["on"]
    key = step.astype(np.int64) * max(1, len(s.lane)) + on
    unsorted = np.flatnonzero(np.diff(key) < 0)
    if len(unsorted):
        row = int(unsorted[0]) + 1
        fail(f"dependencies row {row} ({step[row]} on {on[row]}) is not in sorted order")
    rows: list[tuple[int, int]] = list(zip(step.tolist(), on.tolist(), strict=True))
    for later, earlier in rows:
        if s.rank(later) != s.rank(earlier):
            fail(
                f"{s.name(later)} depends on {s.name(earlier)}: needs a step of the same rank "
                "(only a message orders steps of different ranks)"
            )
        s.after[later].append(earlier)
