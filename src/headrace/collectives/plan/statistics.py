"""What a proven program sends: rounds, bytes on the wire, bytes between groups (PLink, table 1)."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.collectives.program import Direction, Op, Program
from headrace.errors import ProgramError

__all__ = ["ProgramStatistics", "program_statistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStatistics:
    """Counts of a program.

    Attributes
    ----------
    rounds : the longest chain of messages of which each passes on what the one before it brought.
    messages : how many messages there are.
    wire : what is sent, all messages together, in units of the collective's size.
    across : what of it goes from group to group.
    """

    rounds: int
    messages: int
    wire: float
    across: float


def program_statistics(program: Program, groups: Sequence[Sequence[int]] = ()) -> ProgramStatistics:
    """Count what `program`, which has passed the verifier, sends.

    Rounds are of data, not of connections: a message counts one more than the deepest one whose
    data it carries, alone or combined. Waiting for a turn in a lane, or for a slot to become free,
    is no round. As no two steps of a proven program race, the order in which they are followed here
    makes no difference.

    Parameters
    ----------
    groups : the ranks by rack (or host); without, nothing is across.

    Raises
    ------
    ProgramError : if the steps' order is circular: the program is not proven.
    """
    steps, lanes = program.steps, program.lanes
    lane = steps["lane"]
    sends = np.flatnonzero(lanes["direction"][lane] == Direction.SEND)
    source, target = lanes["rank"][lane[sends]], lanes["peer"][lane[sends]]
    count, whole = steps["count"][sends], program.demand.blocks * program.demand.chunks
    side = np.zeros(program.demand.ranks, dtype=np.int64)
    for index, group in enumerate(groups):
        side[list(group)] = index
    crossing = side[source] != side[target]
    return ProgramStatistics(
        rounds=_rounds(program),
        messages=len(np.unique(steps["message"][sends])),
        wire=float(count.sum() / whole),
        across=float(count[crossing].sum() / whole),
    )


def _rounds(program: Program) -> int:
    """Follow the data through all steps in some order in which they may run."""
    steps, lanes = program.steps, program.lanes
    lane_of, op, slot = steps["lane"].tolist(), steps["op"].tolist(), steps["slot"].tolist()
    from_slot, count = steps["src_slot"].tolist(), steps["count"].tolist()
    rank = lanes["rank"].tolist()
    feeds = _mates(program)
    after, waiting = _successors(program, feeds)
    # Only slots that are written take room: a demand can have many more than its steps touch.
    depth: list[dict[int, int]] = [{} for _ in range(program.demand.ranks)]
    carried: dict[int, int] = {}  # by receive step: the depth of what is on its way
    ready = deque(step for step, count_ in enumerate(waiting) if count_ == 0)
    deepest = done = 0
    while ready:
        step = ready.popleft()
        done += 1
        here = depth[rank[lane_of[step]]]
        cells = range(slot[step], slot[step] + count[step])
        if op[step] == Op.SEND:
            level = 1 + max(here.get(cell, 0) for cell in cells)
            deepest = max(deepest, level)
            carried[feeds[step]] = level
        else:
            reads = range(from_slot[step], from_slot[step] + count[step])
            for k, cell in enumerate(cells):
                level = carried[step] if step in carried else here.get(reads[k], 0)
                combines = op[step] in (Op.RECV_REDUCE, Op.REDUCE)
                here[cell] = max(level, here.get(cell, 0)) if combines else level
        for other in after[step]:
            waiting[other] -= 1
            if waiting[other] == 0:
                ready.append(other)
    if done < len(op):
        raise ProgramError(f"{len(op) - done} steps wait for one another; prove the program first")
    return deepest


def _mates(program: Program) -> dict[int, int]:
    """Return for every send the receive that it feeds."""
    lanes, lane_of = program.lanes, program.steps["lane"]
    first = np.searchsorted(lane_of, np.arange(len(lanes["rank"]) + 1))
    names = ("rank", "direction", "peer", "channel")
    columns = zip(*(lanes[name].tolist() for name in names), strict=True)
    number = {key: index for index, key in enumerate(columns)}
    feeds: dict[int, int] = {}
    for (rank, direction, peer, channel), index in number.items():
        if direction == Direction.SEND:
            mate = number[peer, int(Direction.RECV), rank, channel]
            size = first[index + 1] - first[index]
            feeds.update(
                zip(
                    range(first[index], first[index] + size),
                    range(first[mate], first[mate] + size),
                    strict=True,
                )
            )
    return feeds


def _successors(program: Program, feeds: dict[int, int]) -> tuple[list[list[int]], list[int]]:
    """Return for every step those that may not run before it, and how many it waits for."""
    lane_of = program.steps["lane"]
    after: list[list[int]] = [[] for _ in lane_of]
    in_lane = np.flatnonzero(lane_of[1:] == lane_of[:-1]).tolist()
    pairs = [(step, step + 1) for step in in_lane]
    pairs += zip(program.dependencies["on"], program.dependencies["step"], strict=True)
    pairs += feeds.items()
    waiting = [0] * len(lane_of)
    for before, step in pairs:
        after[before].append(int(step))
        waiting[step] += 1
    return after, waiting
