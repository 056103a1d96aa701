"""A program split into units: steps of one slot, matched in rendezvous.

Threadblocks may group slots differently from steps, so export works on the least part that can be
moved. A send and its receive are one *rendezvous*; so is a local step by itself.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from headrace.collectives.plan.cost.pieces import mates_of
from headrace.collectives.program import Op, Program


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """The units of a program.

    Attributes
    ----------
    lanes : by lane, (rank, direction, peer, channel).
    of_lane : by lane, its units in running order.
    lane, op, slot, src_slot : by unit.
    group : by unit, the message; units of one may be moved at once.
    step : by unit, the program's step that it is part of.
    partner : by unit, the other half of its rendezvous; -1 for local units.
    after : by unit, the units of other lanes that it waits for.
    """

    lanes: list[tuple[int, int, int, int]]
    of_lane: list[range]
    lane: list[int]
    op: list[int]
    slot: list[int]
    src_slot: list[int]
    group: list[int]
    step: list[int]
    partner: list[int]
    after: list[list[int]]

    @classmethod
    def of(cls, program: Program) -> "Units":
        """Split `program`, whose lanes must pair and agree.

        A unit that streams behind another waits for the same slot of it only; any other
        dependency is on the last unit (the lane keeps those before it).
        """
        steps, lanes = program.steps, program.lanes
        count = steps["count"].astype(np.int64)
        first = np.concatenate([[0], np.cumsum(count)])
        step = np.repeat(np.arange(len(count)), count)
        offset = np.arange(len(step)) - first[step]
        lane = steps["lane"][step]
        starts = np.searchsorted(lane, np.arange(len(lanes["rank"]) + 1))
        columns = [lanes[name].tolist() for name in ("rank", "direction", "peer", "channel")]
        mate = mates_of(program)[step]
        src = np.where(steps["src_slot"] < 0, -1, steps["src_slot"])[step]
        units = cls(
            lanes=list(zip(*columns, strict=True)),
            of_lane=[range(a, b) for a, b in pairwise(starts.tolist())],
            lane=lane.tolist(),
            op=steps["op"][step].tolist(),
            slot=(steps["slot"][step] + offset).tolist(),
            src_slot=np.where(src < 0, -1, src + offset).tolist(),
            group=steps["message"][step].tolist(),
            step=step.tolist(),
            partner=np.where(mate < 0, -1, first[mate] + offset).tolist(),
            after=[[] for _ in step],
        )
        units._wait(program, first.tolist())
        return units

    def rank(self, unit: int) -> int:
        """Return the rank that `unit` runs at."""
        return self.lanes[self.lane[unit]][0]

    def _wait(self, program: Program, first: list[int]) -> None:
        steps = program.steps
        slot, count, op = (steps[name].tolist() for name in ("slot", "count", "op"))
        local = {int(Op.COPY), int(Op.REDUCE)}
        edges = program.dependencies
        for step, on in zip(edges["step"].tolist(), edges["on"].tolist(), strict=True):
            same = slot[step] == slot[on] and count[step] == count[on]
            if same and op[step] not in local and op[on] not in local:
                for k in range(count[step]):
                    self.after[first[step] + k].append(first[on] + k)
            else:
                self.after[first[step]].append(first[on + 1] - 1)
