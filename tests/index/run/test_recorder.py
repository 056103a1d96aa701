"""Recordings: the trace is what was done, on a share of the keys."""

import threading

import numpy as np
import pytest

from headrace.index.configuration import Configuration
from headrace.index.errors import TraceError
from headrace.index.run.index import Index
from headrace.index.run.recorder import TraceRecorder
from headrace.index.run.trial import replay
from headrace.index.trace import ERASE, FIND, INSERT, SCAN, encode


def test_a_small_recording_has_every_operation() -> None:
    index = Index([-5, 1, 2, 3], [0, 1, 2, 3])
    with TraceRecorder(index) as recorder:
        index.find([1, 9])
        index.insert([9, 2], [9, 9])
        index[-7] = 1
        index.erase(-5)
        index.scan(0, 100)
        assert 3 in index
    trace = recorder.trace
    assert trace is not None
    assert recorder.share == 1
    assert trace.kind == "int64"
    assert trace.operations.tolist() == [FIND, FIND, INSERT, INSERT, INSERT, ERASE, SCAN, FIND]
    assert trace.keys.tolist() == encode([1, 9, 9, 2, -7, -5, 0, 3])[0].tolist()
    assert sorted(trace.loaded.tolist()) == encode([-5, 1, 2, 3])[0].tolist()


def test_a_recording_that_begins_with_no_keys_has_every_operation() -> None:
    """It had those on half of the keys."""
    index = Index(dtype="int64", value_dtype="float64")
    with TraceRecorder(index) as recorder:
        index.insert(np.arange(100), 0.5)
        index.find(np.arange(100))
    assert recorder.trace is not None
    assert recorder.share == 1
    assert recorder.trace.operations.tolist() == [INSERT] * 100 + [FIND] * 100
    assert len(recorder.trace.loaded) == 0


def test_assignments_of_absent_keys_are_finds() -> None:
    """They were insertions: the trace had keys that the index never had."""
    index = Index([1, 2], [0, 0])
    with TraceRecorder(index) as recorder:
        assert index.assign([1, 5], [7, 7]) == 1
        assert index.assign(6, 7) == 0
    trace = recorder.trace
    assert trace is not None
    assert trace.operations.tolist() == [INSERT, FIND, FIND]
    assert trace.final_size() == len(index)


def test_clearing_an_index_erases_its_keys_in_the_trace() -> None:
    """It was left out: the trace had keys that the index had lost."""
    index = Index([1, 2, 3], [0, 0, 0])
    with TraceRecorder(index) as recorder:
        index.insert(4, 0)
        index.clear()
        index.insert(2, 0)
    trace = recorder.trace
    assert trace is not None
    assert trace.operations.tolist() == [INSERT, *[ERASE] * 4, INSERT]
    assert sorted(trace.keys[1:5].tolist()) == encode([1, 2, 3, 4])[0].tolist()
    assert sorted(trace.loaded.tolist()) == encode([1, 2, 3])[0].tolist()
    assert trace.final_size() == len(index) == 1


def test_a_share_of_the_keys_has_all_their_operations() -> None:
    """A replay on the recorded share gives the share of what the index gave."""
    random = np.random.default_rng(0)
    pool = np.unique(random.integers(0, 2**62, 200_000, np.uint64))
    random.shuffle(pool)
    index = Index(pool[:100_000], 0, value_dtype=np.uint32)
    found = inserted = erased = 0
    recorder = TraceRecorder(index, most_operations=20_000, most_keys=25_000)
    recorder.start()
    for _ in range(10):
        found += int(index.contains(random.choice(pool, 20_000)).sum())
        inserted += index.insert(random.choice(pool, 10_000), 0)
        erased += index.erase(random.choice(pool, 2000))
    trace = recorder.stop()
    assert 5000 < len(trace) <= 20_000
    assert recorder.share in (0.0625, 0.03125)
    again = replay(Configuration(), trace)
    for mine, wanted in ((again.found, found), (again.inserted, inserted), (again.erased, erased)):
        assert mine == pytest.approx(wanted * recorder.share, rel=0.2)
    assert again.statistics["size"] == pytest.approx(len(index) * recorder.share, rel=0.1)


def test_what_changes_while_a_recording_ends_is_in_its_trace() -> None:
    """Keys that a thread inserts while the index is read for `loaded` are not in it."""
    index = Index(np.arange(0, 400_000, 2, dtype=np.uint64), 0, value_dtype=np.uint32)
    recorder = TraceRecorder(index, most_operations=1 << 20)
    recorder.start()
    stop = threading.Event()

    def insert() -> None:
        first = 1
        while not stop.is_set() and first < 400_000:
            index.insert(np.arange(first, first + 2000, 2, dtype=np.uint64), 0)
            first += 2000

    thread = threading.Thread(target=insert)
    thread.start()
    trace = recorder.stop()
    stop.set()
    thread.join()
    assert sorted(trace.loaded.tolist()) == list(range(0, 400_000, 2))


def test_one_busy_key_does_not_overflow_a_recording() -> None:
    index = Index([1, 2], [0, 0])
    with TraceRecorder(index, most_operations=100) as recorder:
        for _ in range(50):
            index.find([1] * 40)
    assert recorder.trace is not None
    assert len(recorder.trace) <= 100


def test_only_a_started_recorder_is_stopped() -> None:
    index = Index([1])
    with pytest.raises(TraceError, match="this recording is not under way"):
        TraceRecorder(index).stop()
    with pytest.raises(TraceError, match="needs 2 of each"):
        TraceRecorder(index, most_operations=1)
    with pytest.raises(RuntimeError, match="mine"), TraceRecorder(index):
        raise RuntimeError("mine")
    with pytest.raises(TraceError):
        TraceRecorder(index).stop()


def test_an_index_has_one_recording_at_a_time() -> None:
    index = Index([1, 2, 3], [1, 2, 3])
    with TraceRecorder(index) as first:
        for yields in (False, True):
            with pytest.raises(TraceError, match="is being recorded already"):
                TraceRecorder(index, yields=yields).start()
        with pytest.raises(TraceError, match="is being recorded already"):
            first.start()  # no recorder could end it then
        index.find([2])
    assert first.trace is not None
    assert first.trace.operations.tolist() == [FIND]
    yielding = TraceRecorder(index, yields=True)
    yielding.start()
    with TraceRecorder(index) as second:
        index.find([1, 3])
        with pytest.raises(TraceError, match="not under way"):
            yielding.stop()
    assert second.trace is not None
    assert len(second.trace) == 2
    abandoned = TraceRecorder(index)
    abandoned.start()
    del abandoned
    TraceRecorder(index).start()


def test_activity_counts_and_samples_operations() -> None:
    index = Index(np.arange(10_000, dtype=np.uint64), 0, value_dtype=np.uint32)
    for _ in range(20):
        index.find(np.arange(5000, 15_000, dtype=np.uint64))
    index.insert(np.arange(9000, 11_000, dtype=np.uint64), 1)
    index.erase(3)
    counts, sampled, operations, codes = index.native.activity()
    assert [row[:2] for row in counts] == [(200_000, 100_000), (2000, 1000), (1, 1), (0, 0)]
    assert counts[0][2] == 200_000
    assert counts[0][3] > 0
    assert sampled == pytest.approx(202_000 / 512, rel=0.2)
    assert len(operations) == len(codes) == sampled
    assert (operations[codes >= 15_000] == FIND).all()
    assert 9000 < np.median(codes[operations == FIND]) < 11_000
    assert len(index.native.activity(sampled - 5)[2]) == 5
