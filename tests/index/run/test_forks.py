"""Children of forks: in each the index is whole, works, and waits for no thread of the parent.

A child that was forked while another thread was within a batch found that thread's lock taken, for
ever: 18 of 20 hung in ``find``.
"""

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.pool import Pool
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.errors import ForkError
from headrace.index import IndexAdaptation, TraceRecorder
from headrace.index.adapt.propose import Proposal
from headrace.job.records import Records
from tests.forked import status_of_child
from tests.tiers import Sample
from tests.waiting import HANG_S

BATCH = 20_000
FORKS = 200
LOADERS = 4  # in one test: each starts two processes, beside a thread that takes a processor


@contextmanager
def batches(index: headrace.Index) -> Iterator[None]:
    """Insert batches of new keys from another thread, each with its number as value."""
    ended, begun = threading.Event(), threading.Event()
    random = np.random.default_rng(0)

    def insert() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            index.insert(random.integers(0, 2**60, BATCH, dtype=np.uint64), number)
            if number % 20 == 0:
                index.clear()
            begun.set()

    thread = threading.Thread(target=insert)
    thread.start()
    assert begun.wait(HANG_S)
    try:
        yield
    finally:
        ended.set()
        thread.join(HANG_S)
        assert not thread.is_alive()


def test_a_fork_in_a_batch(sample: Sample) -> None:
    index = headrace.Index(np.arange(1000, dtype=np.uint64), 0)
    forks = sample.of(range(FORKS), 5)

    def use() -> None:
        index.verify()
        size = len(index)
        index.insert(2**63, 7)
        assert index.get(2**63) == 7
        assert len(index.copy()) == size + 1

    with batches(index):
        assert [status_of_child(use) for _ in forks] == [0] * len(forks)
    index.verify()


def found_by(keys: np.ndarray) -> int:
    assert _shared is not None
    return int(_shared.find(keys)[1].sum())


_shared: headrace.Index | None = None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_pool_of_forked_processes(sample: Sample) -> None:
    global _shared
    _shared = headrace.Index(np.arange(1000, dtype=np.uint64), 0)
    keys = np.arange(10, dtype=np.uint64)
    for _ in sample.of(range(FORKS), 5):
        with batches(headrace.Index(keys, 0)), pool_of(2) as pool:
            assert pool.map_async(found_by, [keys] * 4).get(HANG_S) == [10] * 4


@contextmanager
def pool_of(processes: int) -> Iterator[Pool]:
    pool = multiprocessing.get_context("fork").Pool(processes)
    try:
        yield pool
    finally:
        pool.terminate()
        pool.join()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # with one processor
@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(FORKS // LOADERS))
def test_a_data_loader_with_forked_workers(part: int) -> None:
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset[int]):
        """Rows looked up by the index, in the worker."""

        def __init__(self, index: headrace.Index) -> None:
            self.index = index

        def __len__(self) -> int:
            return 8

        def __getitem__(self, row: int) -> int:
            self.index.insert(2**62 + row, row)
            return int(self.index.get(2**62 + row))

    index = headrace.Index(np.arange(1000, dtype=np.uint64), part)
    for _ in range(LOADERS):
        with batches(index):
            loader = DataLoader(
                Rows(index),
                batch_size=2,
                num_workers=2,
                multiprocessing_context="fork",
                timeout=HANG_S,
            )
            assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert 2**62 not in index


def test_a_recording_goes_on_in_a_child() -> None:
    index = headrace.Index(np.arange(1000, dtype=np.uint64), 0)
    recorder = TraceRecorder(index)
    recorder.start()
    index.find(np.arange(5, dtype=np.uint64))

    def stop() -> None:
        index.find(np.arange(7, dtype=np.uint64))
        assert len(recorder.stop()) == 12

    assert status_of_child(stop) == 0
    assert len(recorder.stop()) == 5


def test_adaptation_belongs_to_its_process(tmp_path: Path) -> None:
    """A child has no thread to join, and the planner is its parent's."""
    index = headrace.Index(np.arange(1000, dtype=np.uint64), 0)

    def propose(*_: object) -> Proposal:
        return Proposal(configuration=index.configuration, gain=1.0)

    log = tmp_path / "log"
    with IndexAdaptation(index, proposer=propose, log_path=log, look_s=0.01) as adaptation:

        def use() -> None:
            with pytest.raises(ForkError, match=r"^the adaptation of an index belongs to"):
                adaptation.step()
            adaptation.records.add("never written")
            adaptation.close()
            assert 5 in index

        assert status_of_child(use) == 0
        assert adaptation._thread.is_alive()
    assert not log.exists() or "never written" not in log.read_text()


def test_records_of_a_child_stay_out_of_the_parents_file(tmp_path: Path) -> None:
    records = Records(tmp_path / "log")
    records.add("begun")
    before = (tmp_path / "log").read_text()

    def add() -> None:
        records.add("of a child")
        assert [event["event"] for event in records.events] == ["begun", "of a child"]

    assert status_of_child(add) == 0
    assert (tmp_path / "log").read_text() == before
