"""The ranks' talk about changes, with everything that can come in between."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CommunicationError, InputError
from headrace.job.agreement import Follower, Proposer, RoundOutcome, rank_names
from tests.job.stores import MemoryStore
from tests.job.test_switch import Rank
from tests.waiting import ENDLESS_S, HANG_S, STALL_S, no_hang, wait_until

IDLE_S = 0.001


class Job:
    """Ranks as threads that make calls as fast as they like, each with its agent."""

    def __init__(self, ranks: int, seed: int, delay_s: float, *, silent: int = -1) -> None:
        self.values: dict[str, bytes] = {}
        self.members = [Rank() for _ in range(ranks)]
        self.done: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]  # (payload, call)
        self.heard: list[list[RoundOutcome]] = [[] for _ in range(ranks)]
        self.errors: list[BaseException] = []
        self.stop = threading.Event()
        self.seed = seed
        self.delay_s = delay_s
        self.silent = silent
        self.refusing = False
        self.limit_s = ENDLESS_S

    def store(self, number: int, **options: Callable[[str, str], None]) -> MemoryStore:
        return MemoryStore(self.values, seed=self.seed + number, delay_s=self.delay_s, **options)

    def proposer(self, **options: Callable[[str, str], None]) -> Proposer:
        return Proposer(
            self.store(99, **options),
            rank_names(len(self.members)),
            load_s=self.limit_s,
            promise_s=self.limit_s,
        )

    def _calls(self, rank: int) -> None:
        chance, member = random.Random(self.seed * 7 + rank), self.members[rank]
        while not self.stop.is_set():
            member.call()
            if chance.random() < 0.3:
                time.sleep(chance.random() * self.delay_s + 1e-5)

    def _agent(self, rank: int) -> None:
        member = self.members[rank]

        def change(payload: bytes) -> Callable[[], None]:
            if self.refusing and rank == len(self.members) - 1:
                raise InputError("not with me")
            number = int(payload)
            return lambda: self.done[rank].append((number, member.executor.count))

        follower = Follower(
            self.store(rank),
            f"rank {rank}",
            member.switch,
            handlers={"change": change},
            stop=self.stop,
        )
        while not self.stop.wait(IDLE_S):
            if rank != self.silent and (outcome := follower.poll()) is not None:
                self.heard[rank].append(outcome)

    def _guarded(self, action: Callable[[int], None], rank: int) -> None:
        try:
            action(rank)
        except BaseException as error:
            self.errors.append(error)

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._guarded, args=(action, rank), daemon=True)
            for action in (self._calls, self._agent)
            for rank in range(len(self.members))
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join(HANG_S)
            assert not any(thread.is_alive() for thread in threads)

    def go_on(self, at: int | None = 0) -> None:
        """Every rank makes more calls, and gets beyond number `at`."""
        goals = [max(member.executor.count, at or 0) + 3 for member in self.members]
        targets = tuple(zip(self.members, goals, strict=True))
        wait_until(
            lambda: all(member.executor.count >= goal for member, goal in targets),
            "the calls stand still",
        )

    def check(self, changes: list[RoundOutcome]) -> None:
        """At every call, every rank has the epoch that the verdicts say."""
        assert not self.errors
        for member in self.members:
            expected = 0
            pending = [change for change in changes if change.at is not None]
            for number, epoch in enumerate(member.epochs):
                while pending and number >= (pending[0].at or 0):
                    expected = pending.pop(0).epoch
                assert epoch == expected, f"call {number}"


@settings(max_examples=12)
@given(
    ranks=st.integers(1, 5),
    seed=st.integers(0, 10**6),
    delay_us=st.sampled_from([0, 100, 1000]),
    kinds=st.lists(st.sampled_from(["change", "change", "unknown"]), min_size=1, max_size=8),
)
def test_all_ranks_change_at_the_same_calls(
    ranks: int, seed: int, delay_us: int, kinds: list[str]
) -> None:
    job, changes = Job(ranks, seed, delay_us / 1e6), []
    with job.running():
        proposer = job.proposer()
        for number, kind in enumerate(kinds):
            changes.append(proposer.propose(kind, str(number).encode()))
            assert changes[-1].committed == (kind == "change"), changes[-1].reason
            if number % 3 == 2:
                job.go_on(changes[-1].at)  # else changes pile up
        job.go_on()
    job.check(changes)
    assert set(job.values) == {"begun", "latest", "news"}  # all keys are gone
    for rank in range(ranks):
        made = [(number, at) for number, at in job.done[rank]]
        wanted = [(n, c.at) for n, c in enumerate(changes) if c.at is not None]
        assert made == wanted[: len(made)]  # the last may not be due yet
        assert [outcome.at for outcome in job.heard[rank]] == [c.at for c in changes]


def test_a_rank_that_never_answers_only_prevents_the_change() -> None:
    job = Job(3, 1, 1e-4, silent=1)
    job.limit_s = STALL_S
    with job.running():
        with no_hang():
            outcome = job.proposer().propose("change", b"1")
        job.go_on()
    assert not outcome.committed
    assert outcome.reason == f"rank 1 did not load it within {STALL_S:g} s"
    job.check([])


def test_a_rank_that_refuses_is_named_at_once() -> None:
    job = Job(3, 1, 0.0)
    job.refusing = True
    with job.running():
        proposer = job.proposer()
        with no_hang():
            outcome = proposer.propose("change", b"1")
        job.refusing = False
        later = proposer.propose("change", b"2")
        job.go_on()
    assert outcome.reason == "rank 2 refused: not with me"
    assert later.committed
    job.check([later])


def test_a_proposer_that_is_stopped_aborts() -> None:
    job, stop = Job(2, 1, 0.0, silent=1), threading.Event()
    with job.running():
        threading.Timer(0.1, stop.set).start()
        with no_hang():
            outcome = Proposer(job.store(99), rank_names(2), stop=stop).propose("change", b"1")
        job.go_on()
    assert outcome.reason == "it was aborted, as the group ends"
    job.check([])


def dies_before(word: str) -> Callable[[str, str], None]:
    def before(action: str, key: str) -> None:
        if action == "set" and key.endswith(word):
            raise RuntimeError("the store's host is gone")

    return before


@pytest.mark.parametrize("word", ["offer", "ask", "verdict"])
def test_a_proposer_that_dies_leaves_all_ranks_with_the_old_plan(word: str) -> None:
    job = Job(3, 5, 1e-4)
    job.limit_s = 0.3
    with job.running():
        with pytest.raises(CommunicationError, match="store is lost"):
            job.proposer(before=dies_before(word)).propose("change", b"1")
        job.go_on()  # ranks that promised have given up, or go on until they do
        time.sleep(1.0)  # three times the longest wait for promises
        job.go_on()
        job.limit_s = ENDLESS_S
        successor = job.proposer()
        outcome = successor.propose("change", b"2")
        job.go_on(outcome.at)
    assert outcome.committed
    job.check([outcome])
    assert [number for number, _ in job.done[0]] == [2]


def test_a_successor_frees_the_ranks_that_wait() -> None:
    job = Job(2, 5, 0.0)
    with job.running():
        with pytest.raises(CommunicationError):
            job.proposer(before=dies_before("verdict")).propose("change", b"1")
        with no_hang():
            outcome = job.proposer().propose("change", b"2")
        assert outcome.committed
        job.go_on()
    job.check([outcome])
    assert all(heard[0].reason == "its proposer died" for heard in job.heard)


def test_a_follower_that_loses_the_store_lets_its_rank_go_on() -> None:
    rank, values = Rank(), {}
    lost = threading.Event()

    def before(action: str, key: str) -> None:
        if key.endswith("verdict") and "1/hold/rank 0" in values:
            lost.set()
        if lost.is_set():
            raise RuntimeError("connection reset")

    follower = Follower(
        MemoryStore(values, before=before),
        "rank 0",
        rank.switch,
        handlers={"change": lambda _payload: pytest.fail},
    )
    values |= {"latest": b"1", "1/part/0": b"", "1/ask": b""}
    offer = {"kind": "change", "members": 1, "parts": 1, "load_s": 5, "promise_s": 5}
    values["1/offer"] = json.dumps(offer).encode()
    with pytest.raises(CommunicationError, match="store is lost"):
        follower.poll()
    assert lost.is_set()
    rank.call(200)
    assert set(rank.epochs) == {0}


def test_a_key_that_is_taken_back_while_it_is_read_is_no_loss_of_the_store() -> None:
    rank, values = Rank(), {"latest": b"4", "4/offer": b"{}"}

    def before(action: str, key: str) -> None:
        if (action, key) == ("get", "4/offer"):
            del values[key]

    follower = Follower(MemoryStore(values, before=before), "rank 0", rank.switch, handlers={})
    outcome = follower.poll()
    assert outcome is not None
    assert outcome.reason == "it was over before it was seen"
    assert follower.poll() is None


def test_large_payloads_arrive_whole() -> None:
    job, arrived = Job(2, 0, 0.0), []
    payload = random.Random(1).randbytes(9 << 20)
    followers = [
        Follower(
            job.store(rank),
            f"rank {rank}",
            member.switch,
            handlers={"change": lambda raw: lambda: arrived.append(raw == payload)},
        )
        for rank, member in enumerate(job.members)
    ]

    def follow(follower: Follower) -> None:
        while follower.poll() is None:
            time.sleep(IDLE_S)

    threads = [threading.Thread(target=follow, args=(follower,)) for follower in followers]
    for thread in threads:
        thread.start()
    outcome = job.proposer().propose("change", payload)
    for thread in threads:
        thread.join(HANG_S)
    assert outcome.committed
    assert max(len(value) for value in job.values.values()) <= 8 << 20
    for member in job.members:
        member.call(70)
    assert arrived == [True, True]
