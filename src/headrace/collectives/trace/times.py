"""Times at which a program's steps moved, in order within every lane: measured or predicted."""

from itertools import pairwise

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import EXECUTOR
from headrace.collectives.program import Program
from headrace.collectives.trace.gathering import GatheredTrace, Times
from headrace.topology import Topology

_ONE_CALL_NS = 1000
"""Steps passed within so little time of each other, all begun before, were moved by one call."""


def measured(program: Program, trace: GatheredTrace) -> Times:
    """Return the times of a trace.

    Steps that one call moved (small sends go together) share its time by their bytes.

    Raises
    ------
    ProgramError : `trace` is of another program.
    """
    if len(trace.bytes) != len(program.steps["op"]):
        raise ProgramError(
            f"the trace has {len(trace.bytes)} steps, the program {len(program.steps['op'])}: "
            "needs a trace of this program"
        )
    origin = trace.called_ns.min()
    began, passed = trace.began_ns - origin, trace.passed_ns - origin
    for lane in _lanes(program):
        _share_calls(began[lane], passed[lane], trace.bytes[lane])
    return _in_turn(
        program, trace.called_ns - origin, trace.ended_ns - origin, began, passed, trace.bytes
    )


def predicted(program: Program, topology: Topology, total_bytes: int) -> Times:
    """Simulate the program as the executor would run it; all ranks call at 0.

    Raises
    ------
    TopologyError : `topology` has another number of ranks, or lacks a link that is used.
    """
    simulation = simulate(program, topology, total_bytes, model=EXECUTOR)
    began, passed = (
        np.rint(us * 1e3).astype(np.int64) for us in (simulation.start_us, simulation.finish_us)
    )
    ranks = program.demand.ranks
    ended = np.zeros(ranks, dtype=np.int64)
    np.maximum.at(ended, program.lanes["rank"][program.steps["lane"]], passed)
    moved = np.rint(program.steps["count"] * program.demand.chunk_bytes(total_bytes))
    called = np.zeros(ranks, dtype=np.int64)
    return _in_turn(program, called, ended, began, passed, moved.astype(np.int64))


def _lanes(program: Program) -> list[slice]:
    edges = np.searchsorted(program.steps["lane"], np.arange(len(program.lanes["rank"]) + 1))
    return [slice(first, end) for first, end in pairwise(edges.tolist())]


def _share_calls(began: np.ndarray, passed: np.ndarray, moved: np.ndarray) -> None:
    """Cut the time of every call that moved several steps of a lane, in place."""
    if len(began) < 2:
        return
    joined = (began[1:] < passed[:-1]) & (passed[1:] - passed[:-1] < _ONE_CALL_NS)
    first = np.flatnonzero(np.concatenate(([True], ~joined)))
    for start, end in pairwise([*first.tolist(), len(began)]):
        total = int(moved[start:end].sum())
        if end - start < 2 or total == 0:
            continue
        begin = max(int(began[start]), int(passed[start - 1]) if start else 0)
        share = np.cumsum(moved[start:end]) / total
        passed[start:end] = begin + np.rint(share * (passed[end - 1] - begin)).astype(np.int64)
        began[start:end] = np.concatenate(([begin], passed[start : end - 1]))


def _in_turn(
    program: Program,
    called: np.ndarray,
    ended: np.ndarray,
    began: np.ndarray,
    passed: np.ndarray,
    moved: np.ndarray,
) -> Times:
    least = (moved > 0).astype(np.int64)
    for lane in _lanes(program):
        free = None
        for step in range(lane.start, lane.stop):
            if free is not None and began[step] < free:
                began[step] = free
            passed[step] = free = max(passed[step], began[step] + least[step])
    return Times(called_ns=called, ended_ns=ended, began_ns=began, passed_ns=passed, bytes=moved)
