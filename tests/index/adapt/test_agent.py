"""Adaptation of a live index: phases are followed, users' calls go on, nothing is lost."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.index
from headrace.errors import InputError
from headrace.index.adapt import agent
from headrace.index.adapt.agent import IndexAdaptation
from headrace.index.adapt.decide import TuningAction, TuningLimits, TuningPhase
from headrace.index.adapt.propose import Proposal
from headrace.index.configuration import Configuration
from headrace.index.errors import CapError
from headrace.index.run.index import Index
from headrace.index.trace import INSERT, Trace
from tests.waiting import HANG_S

UNJUDGED = TuningLimits(worse=100.0)
"""Times of short runs on a busy machine tell little."""

READS, WRITES = Configuration(leaf="gapped"), Configuration(leaf="log")


def by_mix(trace: Trace, current: Configuration, value_bytes: int, in_batches: bool) -> Proposal:
    """Plan gapped leaves for reads, logs for writes."""
    wanted = WRITES if (trace.operations == INSERT).mean() > 0.5 else READS
    return Proposal(configuration=wanted, gain=1.0 if wanted == current else 2.0)


class SeenWorkload:
    """Batches on an index, and the keys that it must hold."""

    def __init__(self, keys: int) -> None:
        self.random = np.random.default_rng(0)
        self.known = np.unique(self.random.integers(0, 2**60, keys, np.uint64))
        self.index = Index(self.known, self.known, configuration=Configuration())

    def run(self, inserts: float) -> None:
        fresh = self.random.integers(0, 2**60, int(2000 * inserts), np.uint64)
        self.index.insert(fresh, fresh)
        self.known = np.append(self.known, fresh)
        asked = self.random.choice(self.known, 2000 - len(fresh))
        assert np.array_equal(self.index[asked], asked)

    def check(self) -> None:
        self.index.verify()
        assert np.array_equal(self.index.keys(), np.unique(self.known))


class Clock:
    """A clock that steps move on."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.1
        return self.now_s


def stepped(
    workload: SeenWorkload, adaptation: IndexAdaptation, inserts: float, most: int = 60
) -> float:
    """Run a phase until its conversion is accepted; return the time by the clock."""
    clock: Any = adaptation._clock
    began_s = clock.now_s
    for _ in range(most):
        for _ in range(3):
            workload.run(inserts)
        if adaptation.step() is TuningAction.ACCEPT:
            return clock.now_s - began_s
    pytest.fail(f"not adapted after {most} steps: {adaptation.records.events}")


def test_phases_are_followed_and_logged(tmp_path: Path) -> None:
    """Figure 3.5's phases: read-heavy, write-heavy, write-only; then reads again."""
    workload = SeenWorkload(30_000)
    path = tmp_path / "events"
    adaptation = IndexAdaptation(
        workload.index,
        proposer=by_mix,
        start=False,
        clock=Clock(),
        log_path=path,
        limits=UNJUDGED,
    )
    wanted = [(0.15, READS), (0.85, WRITES), (1.0, WRITES), (0.15, READS)]
    for inserts, configuration in wanted:
        stepped(workload, adaptation, inserts)
        assert workload.index.configuration == configuration
        leaves = workload.index.statistics()["leaves"]
        assert leaves[configuration.leaf] == sum(leaves.values())
        workload.check()
    adaptation.close()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert events == list(adaptation.records.events)
    planned = ["changed", "recorded", "planned", "converted", "watching"]
    kept = ["changed", "recorded", "kept", "watching"]
    assert [each["event"] for each in events] == [*planned, *planned, *kept, *planned]
    assert adaptation.conversions == 3
    assert events[5]["shares"]["insert"] == pytest.approx(0.85, abs=0.05)
    assert events[5]["mix"] == pytest.approx(0.7, abs=0.05)


def test_a_worse_configuration_is_reverted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are made up: the index seems three times as slow after the conversion."""
    from dataclasses import replace

    workload = SeenWorkload(5000)
    adaptation = IndexAdaptation(workload.index, proposer=by_mix, start=False, clock=Clock())
    look = adaptation._observer.look
    slow = {READS: 300.0}

    def seen() -> Any:
        cost_ns = slow.get(workload.index.configuration, 100.0)
        return replace(look(), cost_ns=(cost_ns,) * 4)

    monkeypatch.setattr(adaptation._observer, "look", seen)
    stepped(workload, adaptation, 0.1)
    assert workload.index.configuration == Configuration()
    assert [each["event"] for each in adaptation.records.events][-3:] == [
        "converted",
        "reverted",
        "watching",
    ]
    adaptation.close()
    workload.check()


def test_a_failed_planning_changes_nothing() -> None:
    def fail(*_: object) -> Proposal:
        raise CapError("the cap is 1 bytes per key")

    workload = SeenWorkload(5000)
    adaptation = IndexAdaptation(workload.index, proposer=fail, start=False, clock=Clock())
    stepped(workload, adaptation, 0.1)
    assert adaptation.records.events[-2]["error"] == "the cap is 1 bytes per key"
    assert workload.index.configuration == Configuration()
    assert adaptation.state.phase is TuningPhase.WATCHING
    adaptation.close()


def test_a_close_within_a_conversion_leaves_the_index_whole() -> None:
    workload = SeenWorkload(100_000)
    adaptation = IndexAdaptation(
        workload.index, proposer=by_mix, start=False, clock=Clock(), look_s=1e-4
    )
    for _ in range(30):
        workload.run(0.1)
        if adaptation.step() is TuningAction.CONVERT:
            break
    adaptation.step()
    adaptation.close()
    leaves = workload.index.statistics()["leaves"]
    assert leaves["gapped"] > 0
    assert leaves["hashed"] > 0
    workload.check()


LEFT_OPEN = """
import time
import numpy as np
from headrace.index import Index, IndexAdaptation
index = Index(np.arange(100_000))
adaptation = IndexAdaptation(index, proposer=print, look_s=0.0)
adaptation.step = index.verify  # takes its time, without the interpreter's lock
time.sleep(0.1)
"""


def test_a_script_may_leave_one_open() -> None:
    """The process was aborted at its end: the interpreter ended the thread within a native call."""
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_planner_that_starts_within_a_close_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran on for as long as the process of the index."""
    closing = threading.Event()
    ended: list[object] = []

    class Planner:
        def __init__(self, _most_bytes_per_key: float | None) -> None:
            closing.wait(HANG_S)

        def close(self) -> None:
            ended.append(self)

    monkeypatch.setattr(agent, "PlannerProcess", Planner)
    adaptation = IndexAdaptation(Index([1]))
    join = adaptation._thread.join

    def joined(timeout: float) -> None:
        closing.set()
        join(timeout)

    monkeypatch.setattr(adaptation._thread, "join", joined)
    adaptation.close()
    assert ended == [adaptation._planner]


def test_a_planner_that_does_not_start_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_most_bytes_per_key: float | None) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(agent, "PlannerProcess", refuse)
    with IndexAdaptation(Index([1])) as adaptation:
        adaptation._thread.join(HANG_S)
    assert [event["error"] for event in adaptation.records.events] == ["no more processes"]


def test_a_thread_follows_a_change_while_calls_go_on() -> None:
    """Half a million keys: converted in many slices, between which calls are served.

    How long a slice holds a call up is measured by the index's benchmark.
    """
    workload = SeenWorkload(500_000)
    stop = threading.Event()
    asked = workload.random.choice(workload.known, 64)
    wrong: list[int] = []

    def ask() -> None:
        while not stop.is_set():
            values, present = workload.index.find(asked)
            if not present.all() or not np.array_equal(values, asked):
                wrong.append(adaptation.conversions)
            time.sleep(2e-4)

    with IndexAdaptation(workload.index, proposer=by_mix, limits=UNJUDGED) as adaptation:
        user = threading.Thread(target=ask)
        user.start()
        try:
            began = time.monotonic()
            while adaptation.conversions < 1 and time.monotonic() < began + HANG_S:
                workload.index.find(asked)
                time.sleep(1e-4)
        finally:
            stop.set()
            user.join()
        events = list(adaptation.records.events)
        assert adaptation.conversions == 1, events
    (converted,) = [event for event in events if event["event"] == "converted"]
    assert converted["slices"] > 10
    assert wrong == []
    workload.check()


def test_metrics_are_those_of_the_index() -> None:
    pytest.importorskip("prometheus_client")
    from headrace.index import IndexMetrics

    workload = SeenWorkload(1000)
    workload.run(0.5)
    adaptation = IndexAdaptation(workload.index, proposer=by_mix, start=False)
    found = {each.name: each.samples[0].value for each in IndexMetrics(0, adaptation).collect()}
    assert found["headrace_index_finds"] == 1000
    assert found["headrace_index_inserts"] == 1000
    assert found["headrace_index_keys"] == len(workload.index)
    assert found["headrace_index_conversions"] == 0
    adaptation.close()


def test_metrics_without_their_package_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(
        InputError, match=r"IndexMetrics needs .* pip install 'headrace\[metrics\]'"
    ):
        headrace.index.IndexMetrics  # noqa: B018
