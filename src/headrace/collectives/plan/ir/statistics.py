"""Statistics of a proven program: rounds, bytes sent, bytes between groups (PLink, table 1)."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost.pieces import mates_of
from headrace.collectives.program import Direction, Op, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStatistics:
    """Counts of a program.

    Attributes
    ----------
    rounds : longest chain of messages in which each forwards data of the one before it.
    messages : number of messages.
    wire : data sent, all messages together, in units of the collective's size.
    across : the part of it between groups.
    """

    rounds: int
    messages: int
    wire: float
    across: float


def program_statistics(program: Program, groups: Sequence[Sequence[int]] = ()) -> ProgramStatistics:
    """Return the statistics of `program`, which has passed the verifier.

    Rounds count data dependencies: a message's is one more than the deepest one whose data it
    carries, alone or combined. Waiting for a lane, or for a slot to become free, is no round. As no
    two steps of a proven program race, any topological order of the steps gives the same counts.

    Parameters
    ----------
    groups : the ranks by rack (or host); empty: `across` is 0.

    Raises
    ------
    ProgramError : if the wait-for graph has a cycle: the program is not proven.
    """
    steps, lanes = program.steps, program.lanes
    lane = steps["lane"]
    sends = np.flatnonzero(lanes["direction"][lane] == Direction.SEND)
    source, target = lanes["rank"][lane[sends]], lanes["peer"][lane[sends]]
    count, buffer_chunks = steps["count"][sends], program.demand.blocks * program.demand.chunks
    side = np.zeros(program.demand.ranks, dtype=np.int64)
    for index, group in enumerate(groups):
        side[list(group)] = index
    crossing = side[source] != side[target]
    return ProgramStatistics(
        rounds=_rounds(program),
        messages=len(np.unique(steps["message"][sends])),
        wire=float(count.sum() / buffer_chunks),
        across=float(count[crossing].sum() / buffer_chunks),
    )


def _rounds(program: Program) -> int:
    """Depth of the data, through all steps in a topological order."""
    steps, lanes = program.steps, program.lanes
    lane_of, op, slot = steps["lane"].tolist(), steps["op"].tolist(), steps["slot"].tolist()
    from_slot, count = steps["src_slot"].tolist(), steps["count"].tolist()
    rank = lanes["rank"].tolist()
    mates: list[int] = mates_of(program).tolist()
    after, waiting = _successors(program, mates)
    # Sparse, by slot: a demand can have many more slots than its steps write.
    depth: list[dict[int, int]] = [{} for _ in range(program.demand.ranks)]
    carried: dict[int, int] = {}  # by receive step: the depth of the data in flight
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
            carried[mates[step]] = level
        else:
            reads = range(from_slot[step], from_slot[step] + count[step])
            for k, cell in enumerate(cells):
                level = carried[step] if step in carried else here.get(reads[k], 0)
                combines = op[step] in (Op.RECV_REDUCE, Op.REDUCE)
                here[cell] = max(level, here.get(cell, 0)) if combines else level
        for dependent in after[step]:
            waiting[dependent] -= 1
            if waiting[dependent] == 0:
                ready.append(dependent)
    if done < len(op):
        raise ProgramError(f"{len(op) - done} steps wait for each other; prove the program first")
    return deepest


def _successors(program: Program, mates: list[int]) -> tuple[list[list[int]], list[int]]:
    """Return for every step its successors, and the number of its predecessors."""
    lane_of = program.steps["lane"]
    after: list[list[int]] = [[] for _ in lane_of]
    in_lane = np.flatnonzero(lane_of[1:] == lane_of[:-1]).tolist()
    pairs = [(step, step + 1) for step in in_lane]
    pairs += zip(program.dependencies["on"], program.dependencies["step"], strict=True)
    sends = np.flatnonzero(program.steps["op"] == Op.SEND).tolist()
    pairs += [(send, mates[send]) for send in sends]
    waiting = [0] * len(lane_of)
    for before, step in pairs:
        after[before].append(int(step))
        waiting[step] += 1
    return after, waiting
