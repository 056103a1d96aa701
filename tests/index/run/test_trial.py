"""Trials: what a replay counts is what a dict gives, and what it returns is checked."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from headrace import _native
from headrace.index.configuration import Configuration
from headrace.index.errors import InvariantError, TraceError
from headrace.index.run.trial import replay, replays, trial
from headrace.index.tables import LEAVES
from headrace.index.trace import ERASE, FIND, INSERT, SCAN, SCAN_LENGTH, Trace
from tests.tiers import case
from tests.waiting import JOB_S


def make_trace(count: int = 3000, seed: int = 0) -> Trace:
    random = np.random.default_rng(seed)
    pool = random.integers(0, 2**64 - 1, 2000, np.uint64)
    return Trace(
        loaded=pool[:1000],
        operations=random.choice(
            [FIND, INSERT, ERASE, SCAN], count, p=[0.5, 0.3, 0.15, 0.05]
        ).astype(np.uint8),
        keys=random.choice(pool, count),
    )


def counted(trace: Trace) -> dict[str, int]:
    """Return the counts of a replay of a trace on a set."""
    held = set(trace.loaded.tolist())
    counts = {"found": 0, "inserted": 0, "erased": 0, "scanned": 0}
    for operation, key in zip(trace.operations.tolist(), trace.keys.tolist(), strict=True):
        if operation == FIND:
            counts["found"] += key in held
        elif operation == INSERT:
            counts["inserted"] += key not in held
            held.add(key)
        elif operation == ERASE:
            counts["erased"] += key in held
            held.discard(key)
        else:
            counts["scanned"] += min(SCAN_LENGTH, sum(each >= key for each in held))
    return {**counts, "size": len(held)}


def test_a_replay_counts_what_a_set_gives() -> None:
    trace = make_trace()
    wanted = counted(trace)
    for leaf in LEAVES:
        for value_bytes in (0, 4, 8):
            with case(leaf, value_bytes):
                found = replay(Configuration(leaf=leaf), trace, value_bytes=value_bytes)
                assert {name: getattr(found, name) for name in list(wanted)[:4]} == {
                    name: wanted[name] for name in list(wanted)[:4]
                }
                assert found.statistics["size"] == wanted["size"]
                assert found.checked == found.found + found.scanned
                assert found.operations == len(trace)
                assert found.seconds > 0


def test_windows_run_finds_then_inserts_then_erases_then_scans() -> None:
    """In windows a stable sort by operation gives the same counts."""
    trace = make_trace()
    window = np.arange(len(trace)) // 256
    order = np.lexsort((trace.operations, window))
    ordered = Trace(loaded=trace.loaded, operations=trace.operations[order], keys=trace.keys[order])
    found = replay(Configuration(), trace, batch=256)
    assert found.found == counted(ordered)["found"]
    assert found.statistics["size"] == counted(ordered)["size"]


def test_a_trial_is_a_replay_in_figures() -> None:
    trace = make_trace()
    (found,) = trial([Configuration()], trace)
    assert found.operations_per_s > 0
    assert found.bytes > 1000
    assert found.keys == trace.final_size()
    assert found.seconds > 0
    assert sum(found.leaves) > 0


def test_a_rate_is_finite_where_the_clock_has_not_moved() -> None:
    """Processor clocks of some systems count in milliseconds: it was a division by zero."""
    replayed = replay(Configuration(), make_trace(10))
    assert 0 < replace(replayed, seconds=0.0).operations_per_s < float("inf")


def test_replays_by_turns_are_those_of_each_alone() -> None:
    trace = make_trace(20_000)
    leaves = [Configuration(leaf=leaf) for leaf in LEAVES]
    by_turns = replays(leaves, trace)
    assert (
        len({(found.found, found.inserted, found.erased, found.scanned) for found in by_turns}) == 1
    )
    for configuration, found in zip(leaves, by_turns, strict=True):
        alone = replay(configuration, trace)
        assert (found.operations, found.checked) == (alone.operations, alone.checked)
        assert found.statistics["keys"] == alone.statistics["keys"]


def test_a_replay_ends_at_its_limit_of_time() -> None:
    found = replay(Configuration(), make_trace(20_000), most_s=0.0)
    assert (found.operations, found.operations_per_s) == (0, 0.0)


def test_wrong_traces_are_refused() -> None:
    empty = np.empty(0, np.uint64)
    nothing = Trace(loaded=empty, operations=empty.astype(np.uint8), keys=empty)
    with pytest.raises(TraceError, match="no operations"):
        trial([Configuration()], nothing)
    with pytest.raises(TraceError, match="values have 3 bytes, needs 0, 4 or 8"):
        replay(Configuration(), nothing, value_bytes=3)
    with pytest.raises(TraceError, match="batch is 0"):
        replay(Configuration(), nothing, batch=0)


def test_wrong_values_are_an_error_that_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _native.replay_index
    monkeypatch.setattr(_native, "replay_index", lambda *given: [{**right(*given)[0], "wrong": 3}])
    trace = make_trace(100)
    with pytest.raises(InvariantError, match=r"3 of \d+ keys had a wrong"):
        replay(Configuration(), trace)


KEEPING = """
import numpy as np
from headrace.index.run.trial import keep_memory
from headrace.index.trace import Trace

def faults():
    return int(open("/proc/self/stat").read().rpartition(")")[2].split()[7])

nothing = np.empty(0, np.uint64)
loaded = np.arange(1_000_000, dtype=np.uint64)
keep_memory(Trace(loaded=loaded, operations=nothing.astype(np.uint8), keys=nothing))
before = faults()
for _ in range(5):
    np.ones(30_000_000, dtype=np.uint8)
print(faults() - before)
"""


def test_memory_that_is_kept_is_taken_without_page_faults() -> None:
    script = [sys.executable, "-c", KEEPING]
    done = subprocess.run(script, capture_output=True, text=True, timeout=JOB_S, check=True)
    assert int(done.stdout) < 100  # hundreds without it
