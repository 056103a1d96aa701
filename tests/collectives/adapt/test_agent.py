"""Questions and answers through a store, by threads, over real connections."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.collectives.adapt.agent import Agent, TrafficCollector
from headrace.collectives.run.switch import PlanSwitch
from headrace.executor import Executor
from tests.conformance.groups import group
from tests.job.stores import MemoryStore
from tests.waiting import ENDLESS_S, HANG_S, no_hang

RANKS = 3


@pytest.fixture
def executors() -> Iterator[list[Executor]]:
    with group(RANKS, shared_memory=False) as members:
        yield members


class Job:
    """Every rank's agent on a thread of its own."""

    def __init__(self, executors: list[Executor], silent: int = -1) -> None:
        self.stop = threading.Event()
        self.values: dict[str, bytes] = {}
        self.polls = 0
        self.threads = [
            threading.Thread(target=self.agent(executor).run)
            for executor in executors
            if executor.rank != silent
        ]
        for thread in self.threads:
            thread.start()

    def agent(self, executor: Executor) -> Agent:
        switch = PlanSwitch(executor, lambda _book: lambda: None)
        store = MemoryStore(self.values, before=lambda *_: self.count())
        return Agent(store, executor, switch, stop=self.stop)

    def count(self) -> None:
        self.polls += 1

    def collector(self, timeout_s: float = ENDLESS_S) -> TrafficCollector:
        return TrafficCollector(
            MemoryStore(self.values), RANKS, stop=self.stop, timeout_s=timeout_s
        )

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(HANG_S)
            assert not thread.is_alive()


def move(src: Executor, dst: Executor, nbytes: int) -> None:
    """One message."""
    data, into = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    arriving = dst.recv(into.ctypes.data, nbytes, src.rank, 7)
    src.wait(src.send(data.ctypes.data, nbytes, dst.rank, 7))
    dst.wait(arriving)


def test_answers_say_what_moved_since_the_question_before(executors: list[Executor]) -> None:
    with Job(executors) as job:
        collector = job.collector()
        assert collector.gather() is not None
        move(executors[0], executors[2], 3_000_000)
        found = collector.gather()
        assert found is not None
        assert found.sent_bytes[0, 2] >= 3_000_000
        assert found.sent_bytes.sum() < 3_100_000
        assert np.isfinite(found.rtt_us[0, 2])
        nothing = collector.gather()
        assert nothing is not None
        assert nothing.sent_bytes.sum() < 1000
        # old answers do not pile up
        assert sum(key.startswith("traffic/") for key in job.values) == RANKS


def test_a_silent_rank_is_no_answer_and_no_hang(executors: list[Executor]) -> None:
    with Job(executors, silent=1) as job, no_hang():
        assert job.collector(timeout_s=1.0).gather() is None


def test_agents_are_mostly_asleep(executors: list[Executor]) -> None:
    with Job(executors) as job:
        began, polls = time.monotonic(), job.polls
        time.sleep(1.0)
        polls = job.polls - polls
        # two or three words a look, five looks a second; and what was begun before
        assert polls < (4 * (5 * (time.monotonic() - began) + 1)) * 2 * RANKS


def test_a_lost_store_ends_the_agent_quietly(executors: list[Executor]) -> None:
    def lost(_action: str, _key: str) -> None:
        raise RuntimeError("connection reset")

    switch = PlanSwitch(executors[0], lambda _book: lambda: None)
    agent = Agent(MemoryStore(before=lost), executors[0], switch, stop=threading.Event())
    thread = threading.Thread(target=agent.run)
    thread.start()
    thread.join(HANG_S)
    assert not thread.is_alive()
