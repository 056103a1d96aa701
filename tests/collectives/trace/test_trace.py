"""Traces of real collectives between threads, and what is made of them."""

import json
import threading
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from headrace._native import DataType
from headrace.collectives.demand import STANDARD, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Direction, Program, Schedule, Transfer
from headrace.collectives.trace import clocks, gathering
from headrace.collectives.trace import job as job_module
from headrace.collectives.trace.clocks import Offset, clock_offset
from headrace.collectives.trace.events import trace_events
from headrace.collectives.trace.gathering import GatheredTrace, gather
from headrace.collectives.trace.job import TraceJob, TraceResult, trace_ranks
from headrace.collectives.trace.lanes import lane_counters
from headrace.collectives.trace.times import Times, measured, predicted
from headrace.errors import CommunicationError, InputError, VerificationError
from headrace.executor import Executor, Recorded
from headrace.topology.presets import uniform
from tests.conformance.groups import each, group

RANKS = 3
SIZE = 600_000


def ring() -> Program:
    return lower(templates.ring(Demand(collective=Collective.ALLREDUCE, ranks=RANKS, chunks=RANKS)))


def traced(
    executors: list[Executor], program: Program, size: int = SIZE
) -> tuple[GatheredTrace, list[np.ndarray]]:
    """Run `program` on buffers of `size` ones, traced; every rank gets its own result."""
    proof, found = verify(program), []
    buffers = [np.ones(size, np.float32) for _ in executors]

    def one(executor: Executor) -> None:
        loaded = executor.load(program, proof)
        rows = [(buffers[executor.rank].ctypes.data, size, 1, program.demand.chunks)]
        recorded = executor.trace(executor.prepare(loaded, rows, dtype=DataType.float32))
        if (trace := gather(executor, program, recorded)) is not None:
            found.append(trace)

    each(executors, one)
    (trace,) = found
    return trace, buffers


@pytest.fixture(scope="module", params=[False, True], ids=["tcp", "memory"])
def trace(request: pytest.FixtureRequest) -> GatheredTrace:
    with group(RANKS, shared_memory=request.param) as executors:
        found, buffers = traced(executors, ring())
    assert all((buffer == RANKS).all() for buffer in buffers)
    return found


def test_every_step_moved_within_its_ranks_call(trace: GatheredTrace) -> None:
    program = ring()
    rank = program.lanes["rank"][program.steps["lane"]]
    assert (trace.called_ns[rank] <= trace.began_ns).all()
    assert (trace.began_ns <= trace.passed_ns).all()
    assert (trace.passed_ns <= trace.ended_ns[rank]).all()
    sends = program.lanes["direction"][program.steps["lane"]] == Direction.SEND
    assert trace.bytes[sends].sum() == 2 * (RANKS - 1) * SIZE * 4
    assert (trace.uncertainty_ns == 0).all(), "threads read one clock"
    again = GatheredTrace.from_json(json.loads(json.dumps(trace.to_json())))
    assert (again.began_ns == trace.began_ns).all()
    assert again.total_us == trace.total_us


def test_the_file_is_what_viewers_read(trace: GatheredTrace) -> None:
    program = ring()
    foreseen = predicted(program, uniform(RANKS), SIZE * 4)
    text = json.dumps(trace_events(program, measured(program, trace), foreseen, {"bytes": 4}))
    whole = json.loads(text)
    assert whole["displayTimeUnit"] == "ms"
    assert whole["otherData"] == {"bytes": 4}
    check_events(whole["traceEvents"], ranks=RANKS, groups=("measured", "predicted"))
    slices = [event for event in whole["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in slices if "bytes" in event["args"]]
    assert len(steps) == 2 * len(program.steps["op"])
    assert {"send slot 0 -> rank 1", "recv+reduce slot 0 <- rank 0"} <= {s["name"] for s in steps}
    calls = {event["pid"]: event for event in slices if event["cat"] == "call"}
    assert min(calls[pid]["ts"] for pid in (1, 2, 3)) == 0
    assert all(calls[pid]["ts"] == 0 for pid in (4, 5, 6)), "the prediction is aligned"
    for event in slices:  # every slice lies in its rank's call
        call = calls[event["pid"]]
        assert call["ts"] <= event["ts"]
        assert event["ts"] + event["dur"] <= call["ts"] + call["dur"] + 0.1


def check_events(events: list[dict[str, Any]], ranks: int, groups: tuple[str, ...]) -> None:
    """The format, no two slices of a row at once, and an arrow from every send to a receive."""
    assert {event["ph"] for event in events} == {"X", "M", "s", "f"}
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == sorted(f"{g}: rank {r}" for g in groups for r in range(ranks))
    rows: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        assert event["pid"] in names
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            rows[event["pid"], event["tid"]].append(event)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(rows) <= named
    for row in rows.values():
        for one, other in pairwise(sorted(row, key=lambda event: event["ts"])):
            assert ns(one["ts"]) + ns(one["dur"]) <= ns(other["ts"])
    ends: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            assert event["ph"] not in ends[event["id"]], "an arrow's end twice"
            ends[event["id"]][event["ph"]] = event
    arrows = [(tied(pair["s"], rows), tied(pair["f"], rows)) for pair in ends.values()]
    sends = [s for row in rows.values() for s in row if s["cat"] == "send"]
    assert sorted(id(a) for a, _ in arrows) == sorted(id(send) for send in sends)
    for send, receive in arrows:
        assert receive["cat"] in ("recv", "recv_reduce")
        assert send["args"]["bytes"] == receive["args"]["bytes"]
        assert send["name"].split()[2].rstrip("s") == receive["name"].split()[2].rstrip("s")


def tied(end: dict[str, Any], rows: dict[tuple[int, int], list[dict[str, Any]]]) -> dict[str, Any]:
    """The slice that a viewer ties an arrow's end to."""
    at = ns(end["ts"])
    row = (event for event in rows[end["pid"], end["tid"]] if event["cat"] != "gap")
    (found,) = (s for s in row if ns(s["ts"]) <= at < ns(s["ts"]) + ns(s["dur"]))
    return found


def ns(us: float) -> int:
    return round(us * 1000)


def test_lanes_account_for_all_of_their_time(trace: GatheredTrace) -> None:
    program = ring()
    times = measured(program, trace)
    rows = lane_counters(program, times)
    assert len(rows) == 2 * RANKS
    for row in rows:
        assert row.steps == 2 * (RANKS - 1)
        assert row.bytes == 2 * (RANKS - 1) * SIZE * 4 / RANKS
        assert min(row.moving_us, row.waiting_us, row.held_us) >= 0
        assert row.moving_us > 0
        mine = (program.lanes["rank"] == row.rank) & (program.lanes["direction"] == row.direction)
        last = times.passed_ns[np.isin(program.steps["lane"], np.flatnonzero(mine))].max()
        spent = row.moving_us + row.waiting_us + row.held_us
        assert spent == pytest.approx((last - times.called_ns[row.rank]) / 1e3)


def chain() -> Program:
    """Rank 0 sends two slots to 1, which forwards each to 2."""
    demand = Demand(collective=Collective.BROADCAST, ranks=3, chunks=2)
    hops = [Transfer(r, r + 1, slot, slot) for slot in (0, 1) for r in (0, 1)]
    return lower(Schedule.of(demand, hops))


def lane_of(program: Program, rank: int, direction: Direction) -> int:
    lanes = program.lanes
    (found,) = np.flatnonzero((lanes["rank"] == rank) & (lanes["direction"] == direction))
    return int(found)


def test_what_holds_a_lane_back_is_told_from_what_its_peer_does() -> None:
    program = chain()
    called, ended = np.zeros(3, np.int64), np.full(3, 100_000)
    began, passed = np.zeros(8, np.int64), np.zeros(8, np.int64)

    def put(rank: int, direction: Direction, *spans: tuple[int, int]) -> None:
        mine = program.steps["lane"] == lane_of(program, rank, direction)
        began[mine], passed[mine] = np.array(spans).T * 1000

    put(0, Direction.SEND, (0, 10), (10, 20))
    put(1, Direction.RECV, (2, 12), (14, 22))
    put(1, Direction.SEND, (5, 13), (20, 30))
    put(2, Direction.RECV, (6, 14), (21, 31))
    times = Times(
        called_ns=called, ended_ns=ended, began_ns=began, passed_ns=passed, bytes=np.full(8, 50)
    )
    rows = {(row.rank, row.direction): row for row in lane_counters(program, times)}
    # the first waits 2 us to be received and 3 more for its peer, the second 1 and 6
    forwards = rows[1, Direction.SEND]
    assert (forwards.moving_us, forwards.waiting_us, forwards.held_us) == (18.0, 9.0, 3.0)
    receives = rows[1, Direction.RECV]
    assert (receives.moving_us, receives.waiting_us, receives.held_us) == (18.0, 4.0, 0.0)


def test_steps_that_one_call_moved_share_its_time() -> None:
    program = chain()
    sends = program.steps["lane"] == lane_of(program, 0, Direction.SEND)
    began, passed = np.full(8, 1_000), np.full(8, 9_000)
    passed[sends] = (9_000, 9_040)
    moved = np.full(8, 300)
    moved[sends] = (300, 100)
    trace = GatheredTrace(
        called_ns=np.full(3, 1_000),
        ended_ns=np.full(3, 10_000),
        began_ns=began,
        passed_ns=passed,
        bytes=moved,
        uncertainty_ns=np.zeros(3, np.int64),
    )
    times = measured(program, trace)
    assert times.began_ns[sends].tolist() == [0, 6_030]
    assert times.passed_ns[sends].tolist() == [6_030, 8_040]
    assert trace.began_ns.tolist() == [1_000] * 8, "the trace is as it was"


def test_traces_of_other_programs_are_refused(trace: GatheredTrace) -> None:
    with pytest.raises(ProgramError, match=r"has 24 steps, the program 8"):
        measured(chain(), trace)
    nothing = Recorded.of(0, 0, np.zeros((5, 3), np.int64))
    with (
        group(3) as executors,
        pytest.raises(ProgramError, match="5 steps were recorded at rank 0"),
    ):
        gather(executors[0], chain(), nothing)
    with group(2) as executors, pytest.raises(ProgramError, match="is for 3 ranks, this group"):
        gather(executors[0], chain(), nothing)


def test_a_traced_call_fails_as_any_other() -> None:
    program = lower(templates.direct(Demand(collective=Collective.ALLGATHER, ranks=2)))
    with group(2) as executors:
        loaded = executors[0].load(program, verify(program))
        with pytest.raises(InputError, match="the segments make more slots, the program has 2"):
            executors[0].trace(executors[0].prepare(loaded, [(0, 0, 3, 1)], dtype=DataType.uint8))
        executors[1].abort("enough")
        buffer = np.zeros(2, np.uint8)
        rows = [(buffer.ctypes.data, 1, 2, 1)]
        with pytest.raises(CommunicationError, match="enough"):
            executors[0].trace(executors[0].prepare(loaded, rows, dtype=DataType.uint8))


def test_offsets_of_clocks_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_ns = 5_000_000_000
    mine, real = threading.local(), time.monotonic_ns

    class Shifted:
        @staticmethod
        def monotonic_ns() -> int:
            return real() + getattr(mine, "shift", 0)

    monkeypatch.setattr(clocks, "time", Shifted)
    found: list[Offset | None] = [None, None]

    def one(executor: Executor) -> None:
        mine.shift = ahead_ns * executor.rank
        found[executor.rank] = clock_offset(executor, 1 - executor.rank)

    with group(2) as executors:
        each(executors, one)
        with pytest.raises(InputError, match="round_trips is 0"):
            clock_offset(executors[0], 1, round_trips=0)
    offset, nothing = found
    assert nothing is None
    assert offset is not None
    assert 0 < offset.uncertainty_ns < 50_000_000
    assert abs(offset.offset_ns - ahead_ns) <= offset.uncertainty_ns


def test_ranks_with_clocks_of_their_own_are_put_on_that_of_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # every call another identity, so that no two ranks seem to share a clock
    monkeypatch.setattr(gathering, "clock_identity", lambda: np.random.default_rng().bytes(16))
    with group(RANKS) as executors:
        found, _ = traced(executors, ring(), size=3_000)
    assert found.uncertainty_ns[0] == 0
    assert (found.uncertainty_ns[1:] > 0).all()
    # in truth they do: so they can be off by no more than is said
    program = ring()
    rank = program.lanes["rank"][program.steps["lane"]]
    slack = found.uncertainty_ns[rank]
    assert (found.began_ns >= found.called_ns[0] - 60e9 - slack).all()
    assert found.total_us < 60e6


@pytest.mark.parametrize("collective", STANDARD)
def test_jobs_check_every_result(collective: Collective, monkeypatch: pytest.MonkeyPatch) -> None:
    program = lower(templates.direct(Demand(collective=collective, ranks=3, chunks=1)))
    job = TraceJob(program=program, total_bytes=1_000, repeats=3, warm_ups=1)
    assert job.moved_bytes <= 1_000
    found: list[TraceResult] = []

    def one(executor: Executor) -> None:
        if (mine := trace_ranks(executor, job)) is not None:
            found.append(TraceResult.from_json(json.loads(json.dumps(mine.to_json()))))

    with group(3) as executors:
        each(executors, one)
    assert len(found[0].totals_us) == 3
    assert found[0].trace.total_us == sorted(found[0].totals_us)[1]
    honest = job_module._contents

    def spoilt(job: TraceJob, rank: int) -> Any:
        buffer, given, wanted = honest(job, rank)
        checked = wanted or {0: given[: job.block_elements]}
        return buffer, given, {block: values + 1 for block, values in checked.items()}

    monkeypatch.setattr(job_module, "_contents", spoilt)
    with group(3) as executors, pytest.raises(VerificationError, match=r"rank \d, block \d"):
        each(executors, one)


def test_jobs_name_what_they_cannot_run() -> None:
    gathering = lower(templates.direct(Demand(collective=Collective.ALLGATHER, ranks=3)))
    with pytest.raises(InputError, match="size is 11 bytes, needs at least 12"):
        TraceJob(program=gathering, total_bytes=11)
    with pytest.raises(InputError, match="repeats is 0"):
        TraceJob(program=gathering, total_bytes=12, repeats=0)
    uneven = lower(templates.direct(Demand.all_to_all_v([[1, 1], [1, 1]])))
    with pytest.raises(InputError, match="all_to_all_v cannot be traced by name"):
        TraceJob(program=uneven, total_bytes=12)
