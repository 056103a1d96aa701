"""Bytes and times by lane: moving, waiting for the peer, held back by other lanes."""

from dataclasses import dataclass

import numpy as np

from headrace.collectives.program import Direction, Op, Program
from headrace.collectives.trace.times import Times


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneCounters:
    """One lane's counters of a call.

    Attributes
    ----------
    peer : -1 for local lanes.
    moving_us : from the first to the last byte of its steps, added up.
    waiting_us : the rest for which a step's dependencies allowed bytes to move: then it waits for
        the peer (that has not sent, or has no room), or for the thread that moves all lanes.
    held_us : the rest for which they did not: other lanes of this rank hold it back.
    """

    rank: int
    direction: Direction
    peer: int
    channel: int
    steps: int
    bytes: int
    moving_us: float
    waiting_us: float
    held_us: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """Times before every step of a program begins, in ns: ``previous <= allowed <= began``.

    Attributes
    ----------
    previous_ns : when the step before it in its lane was passed; for the first, the rank's call.
    allowed_ns : when its dependencies let its first byte move.
    """

    previous_ns: np.ndarray
    allowed_ns: np.ndarray


def gaps(program: Program, times: Times) -> Gaps:
    """Return the times from which every step waited before it began.

    A step that streams may begin when what it depends on has begun, others when that is passed.
    """
    steps, lane = program.steps, program.steps["lane"]
    previous = np.concatenate((np.zeros(1, np.int64), times.passed_ns[:-1]))[: len(lane)]
    first = np.concatenate(([True], lane[1:] != lane[:-1]))[: len(lane)]
    previous[first] = times.called_ns[program.lanes["rank"][lane[first]]]
    step, on = program.dependencies["step"], program.dependencies["on"]
    local = (steps["op"] == Op.COPY) | (steps["op"] == Op.REDUCE)
    streaming = (
        (steps["slot"][step] == steps["slot"][on])
        & (steps["count"][step] == steps["count"][on])
        & ~local[step]
        & ~local[on]
    )
    allowed = previous.copy()
    np.maximum.at(allowed, step, np.where(streaming, times.began_ns[on], times.passed_ns[on]))
    began = np.maximum(times.began_ns, previous)
    return Gaps(previous_ns=previous, allowed_ns=np.minimum(allowed, began))


def lane_counters(program: Program, times: Times) -> list[LaneCounters]:
    """Return the counters of every lane that has steps, in the program's order."""
    lanes, lane = program.lanes, program.steps["lane"]
    before = gaps(program, times)
    count = len(lanes["rank"])

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(lane, weights=values, minlength=count)

    steps, moved = np.bincount(lane, minlength=count), total(times.bytes)
    moving = total(times.passed_ns - times.began_ns)
    waiting = total(np.maximum(times.began_ns - before.allowed_ns, 0))
    held_ns = total(before.allowed_ns - before.previous_ns)
    return [
        LaneCounters(
            rank=int(lanes["rank"][index]),
            direction=Direction(lanes["direction"][index]),
            peer=int(lanes["peer"][index]),
            channel=int(lanes["channel"][index]),
            steps=int(steps[index]),
            bytes=int(moved[index]),
            moving_us=float(moving[index]) / 1e3,
            waiting_us=float(waiting[index]) / 1e3,
            held_us=float(held_ns[index]) / 1e3,
        )
        for index in np.flatnonzero(steps).tolist()
    ]
