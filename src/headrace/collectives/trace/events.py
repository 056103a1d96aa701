"""A trace for ui.perfetto.dev and chrome://tracing, in the Trace Event Format.

A process is a rank, its first thread the call as a whole, and every other one a lane. A slice (X)
is a step, or what a lane waits for; an arrow (s, f) leads from a send to its receive; names are
metadata (M). Predicted times are a second group of processes, which begins at the same time.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.collectives.plan.cost.pieces import mates_of
from headrace.collectives.program import Direction, Op, Program
from headrace.collectives.trace.lanes import gaps
from headrace.collectives.trace.times import Times

Event = dict[str, Any]

_GAP_NS = 1000
"""Shorter waits are not drawn."""

_CALL_THREAD = 1  # viewers take thread 0 for the kernel's idle one
_VERBS = {Op.SEND: "send", Op.RECV: "recv", Op.RECV_REDUCE: "recv+reduce"}


def trace_events(
    program: Program,
    measured: Times,
    predicted: Times | None = None,
    about: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the JSON object of a trace; times are us from the first rank's call on.

    Parameters
    ----------
    about : further facts for the file (its ``otherData``).
    """
    events = list(_group(program, measured, "measured", 0))
    if predicted is not None:
        events += _group(program, predicted, "predicted", program.demand.ranks)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about or {}}


def lane_name(direction: Direction, peer: int, channel: int) -> str:
    """Return a lane's direction, peer and channel in words."""
    if direction is Direction.LOCAL:
        return "local steps"
    verb = "send to" if direction is Direction.SEND else "receive from"
    return f"{verb} rank {peer}" + (f", channel {channel}" if channel else "")


def _group(program: Program, times: Times, group: str, earlier: int) -> Iterator[Event]:
    """Yield the events of the processes ``earlier + 1`` on."""
    demand, lanes = program.demand, program.lanes
    for rank in range(demand.ranks):
        pid = earlier + rank + 1
        yield _meta("process_name", pid, {"name": f"{group}: rank {rank}"})
        yield _meta("process_sort_index", pid, {"sort_index": pid})
        yield _meta("thread_name", pid, {"name": "call"}, _CALL_THREAD)
        span = (int(times.called_ns[rank]), int(times.ended_ns[rank]))
        yield _slice(str(demand.collective), "call", pid, _CALL_THREAD, span, {})
    columns = (lanes[name].tolist() for name in ("rank", "direction", "peer", "channel"))
    for lane, (rank, direction, peer, channel) in enumerate(zip(*columns, strict=True)):
        name = lane_name(Direction(direction), peer, channel)
        yield _meta("thread_name", earlier + rank + 1, {"name": name}, _thread(lane))
    yield from _steps(program, times, earlier)
    yield from _arrows(program, times, group, earlier)


def _steps(program: Program, times: Times, earlier: int) -> Iterator[Event]:
    before, lane_of = gaps(program, times), program.steps["lane"]
    for step in np.flatnonzero(times.bytes > 0).tolist():
        lane = int(lane_of[step])
        pid, tid = earlier + int(program.lanes["rank"][lane]) + 1, _thread(lane)
        peer = int(program.lanes["peer"][lane])
        previous, allowed = int(before.previous_ns[step]), int(before.allowed_ns[step])
        began, passed = int(times.began_ns[step]), int(times.passed_ns[step])
        waits = "waits for its turn" if peer < 0 else f"waits for rank {peer}"
        for name, span in (("held back", (previous, allowed)), (waits, (allowed, began))):
            if span[1] - span[0] >= _GAP_NS:
                yield _slice(name, "gap", pid, tid, span, {})
        args = {
            "step": step,
            "bytes": int(times.bytes[step]),
            "MB/s": round(float(times.bytes[step]) / (passed - began) * 1e3, 1),
            "held back us": (allowed - previous) / 1e3,
            "waited us": (began - allowed) / 1e3,
        }
        name, kind = _step_name(program, step, peer)
        yield _slice(name, kind, pid, tid, (began, passed), args)


def _arrows(program: Program, times: Times, group: str, earlier: int) -> Iterator[Event]:
    lane_of, lanes = program.steps["lane"], program.lanes
    mate = mates_of(program)
    sends = lanes["direction"][lane_of] == Direction.SEND
    for step in np.flatnonzero(sends & (times.bytes > 0)).tolist():
        receive = int(mate[step])
        began = int(times.began_ns[step])
        # inside the receive, and after the send's begin where clocks and times allow it
        last = int(times.passed_ns[receive]) - 1
        lands = min(max(began, int(times.began_ns[receive])), last)
        for phase, at, when in (("s", step, began), ("f", receive, lands)):
            lane = int(lane_of[at])
            yield {
                "ph": phase,
                "name": "bytes",
                "cat": group,
                "id": f"{group}-{step}",
                "pid": earlier + int(lanes["rank"][lane]) + 1,
                "tid": _thread(lane),
                "ts": when / 1e3,
                **({"bp": "e"} if phase == "f" else {}),
            }


def _step_name(program: Program, step: int, peer: int) -> tuple[str, str]:
    """(name, category) of a step."""
    op = Op(program.steps["op"][step])
    slots = _slots(int(program.steps["slot"][step]), int(program.steps["count"][step]))
    if op in _VERBS:
        arrow = "->" if op is Op.SEND else "<-"
        return f"{_VERBS[op]} {slots} {arrow} rank {peer}", op.name.lower()
    source = _slots(int(program.steps["src_slot"][step]), int(program.steps["count"][step]))
    return f"{op.name.lower()} {source} to {slots}", op.name.lower()


def _slots(first: int, count: int) -> str:
    return f"slot {first}" if count == 1 else f"slots {first}-{first + count - 1}"


def _thread(lane: int) -> int:
    return _CALL_THREAD + 1 + lane


def _meta(name: str, pid: int, args: dict[str, Any], tid: int = 0) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _slice(
    name: str, category: str, pid: int, tid: int, span: tuple[int, int], args: dict[str, Any]
) -> Event:
    begin, end = span
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": begin / 1e3,
        "dur": (end - begin) / 1e3,
        "args": args,
    }
