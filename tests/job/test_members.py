"""Roles that join, leave and are replaced, while others work and while some are lost."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CommunicationError, InputError, StaleEpochError
from headrace.job.agreement import own_connection
from headrace.job.members import Membership, RoleMember, View, member_name
from headrace.launch.roles import Role, Roles
from tests.conformance.launch import free_port
from tests.conformance.warm import command, environment
from tests.job.stores import MemoryStore
from tests.waiting import ENDLESS_S, HANG_S, STALL_S, no_hang, wait_until

SAMPLED = pytest.mark.sampled(1, of="members")


class Process:
    """A member as threads: an agent, and a worker that notes when it works in which epoch."""

    def __init__(self, job: "Job", role: str, incarnation: int) -> None:
        self.job = job
        self.loaded: list[tuple[View, bytes]] = []
        self.error: BaseException | None = None
        self.silent = self.refusing = self.killed = False
        self.before: Callable[[str, str], None] = lambda _action, _key: None
        store = job.store(len(job.processes), before=lambda *action: self.before(*action))
        self.member = RoleMember(store, role, incarnation, self._load, stop=job.stop)
        self.threads = [
            threading.Thread(target=self._guarded, args=(action,), daemon=True)
            for action in (self._agent, self._worker)
        ]
        for thread in self.threads:
            thread.start()

    def _load(self, view: View, payload: bytes) -> Callable[[], None]:
        if self.refusing:
            raise InputError("no room")
        return lambda: self.loaded.append((view, payload))

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:
            self.error = error

    def _agent(self) -> None:
        while not self.job.stop.wait(0.001) and not self.killed:
            if not self.silent:
                self.member.poll()

    def _worker(self) -> None:
        while not self.job.stop.is_set() and not self.killed:
            with self.member.work(ENDLESS_S) as epoch:
                self.job.note(epoch, 1)
                time.sleep(self.job.random.random() * 1e-3)
                self.job.note(epoch, -1)

    def has_ended(self) -> bool:
        return not any(thread.is_alive() for thread in self.threads)


class Job:
    def __init__(self, seed: int = 0, delay_s: float = 0.0) -> None:
        self.values: dict[str, bytes] = {}
        self.random = random.Random(seed)
        self.delay_s = delay_s
        self.stop = threading.Event()
        self.processes: dict[str, Process] = {}
        self.lost: set[str] = set()
        self._working: dict[int, int] = {}
        self._lock = threading.Lock()
        self.mixed: list[dict[int, int]] = []

    def store(self, seed: int, **options: Callable[[str, str], None]) -> MemoryStore:
        return MemoryStore(self.values, seed=seed, delay_s=self.delay_s, **options)

    def coordinator(
        self, limit_s: float = ENDLESS_S, **options: Callable[[str, str], None]
    ) -> Membership:
        return Membership(
            self.store(99, **options), load_s=limit_s, promise_s=limit_s, lost=lambda: self.lost
        )

    def begin(self, role: str, incarnation: int = 0) -> Process:
        process = Process(self, role, incarnation)
        self.processes[process.member.name] = process
        return process

    def note(self, epoch: int, change: int) -> None:
        """Count who works; all who do are of one epoch."""
        with self._lock:
            self._working[epoch] = self._working.get(epoch, 0) + change
            working = {epoch: count for epoch, count in self._working.items() if count}
            if len(working) > 1:
                self.mixed.append(working)


@contextmanager
def running(seed: int = 0, delay_s: float = 0.0) -> Iterator[Job]:
    job = Job(seed, delay_s)
    with ExitStack() as stack:
        stack.callback(job.stop.set)
        yield job
    assert not job.mixed, "members worked in different epochs at the same time"


def entered(process: Process, epoch: int) -> Callable[[], bool]:
    return lambda: process.member.view.epoch == epoch


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10**6),
    delay_us=st.sampled_from([0, 100, 1000]),
    changes=st.lists(st.sampled_from(["join", "leave", "replace", "none"]), max_size=6),
)
def test_work_of_two_epochs_never_overlaps(seed: int, delay_us: int, changes: list[str]) -> None:
    with running(seed, delay_us / 1e6) as job:
        members: dict[str, int] = {"role 0": 0, "role 1": 0}
        for role in members:
            job.begin(role)
        coordinator = job.coordinator()
        payloads = {}
        for number, change in enumerate(["first", *changes]):
            role = job.random.choice(sorted(members))
            name = member_name(role, members[role])
            if change == "join":
                members[f"role {number + 2}"] = 0
                job.begin(f"role {number + 2}")
            elif change == "leave" and len(members) > 1:
                job.processes[name].member.leave()
                del members[role]
            elif change == "replace":
                job.processes[name].killed = True
                wait_until(job.processes[name].has_ended, f"{name} goes on")
                job.lost.add(name)
                members[role] += 1
                job.begin(role, members[role])
            payloads[number] = str(number).encode()
            with no_hang():
                outcome = coordinator.change(members, payloads[number])
            assert outcome.committed, outcome.reason
            assert coordinator.view == View(epoch=outcome.epoch, members=members)
            for name in coordinator.view.names():
                process = job.processes[name]
                wait_until(entered(process, outcome.epoch), "a member did not enter")
                assert process.loaded[-1] == (coordinator.view, payloads[number])
        assert coordinator.leaving() == ()
        for name, process in job.processes.items():
            if name not in coordinator.view.names() and not process.killed:
                wait_until(process.has_ended, f"{name} goes on")
                assert isinstance(process.error, StaleEpochError)


def two_members(job: Job, coordinator: Membership) -> Mapping[str, int]:
    members = {"server": 0, "trainer": 0}
    for role in members:
        job.begin(role)
    assert coordinator.change(members).committed
    return members


@SAMPLED
def test_one_that_never_answers_only_prevents_the_change() -> None:
    with running() as job:
        coordinator = job.coordinator(STALL_S)
        members = two_members(job, coordinator)
        job.processes["server, incarnation 0"].silent = True
        before = coordinator.view
        outcome = coordinator.change(members)
        assert outcome.reason == f"server, incarnation 0 did not load it within {STALL_S:g} s"
        assert coordinator.view == before
        job.processes["server, incarnation 0"].silent = False
        assert coordinator.change(members).committed


def test_one_that_ended_is_named_at_once() -> None:
    with running() as job:
        coordinator = job.coordinator()
        members = two_members(job, coordinator)
        job.processes["trainer, incarnation 0"].silent = True
        threading.Timer(0.05, job.lost.add, args=["trainer, incarnation 0"]).start()
        with no_hang():
            outcome = coordinator.change(members)
        assert outcome.reason == "trainer, incarnation 0 ended"


def test_one_that_refuses_is_named_and_all_go_on() -> None:
    with running() as job:
        coordinator = job.coordinator()
        members = two_members(job, coordinator)
        server = job.processes["server, incarnation 0"]
        server.refusing = True
        with no_hang():
            outcome = coordinator.change(members)
        assert outcome.reason == "server, incarnation 0 refused: no room"
        server.refusing = False
        assert coordinator.change(members).committed


def test_work_that_does_not_end_refuses_the_change() -> None:
    with running() as job:
        coordinator = job.coordinator(STALL_S)
        members = two_members(job, coordinator)
        server = job.processes["server, incarnation 0"].member
        with server.work() as epoch:
            outcome = coordinator.change(members)
            assert "server, incarnation 0 refused" in outcome.reason
            assert f"the work of epoch {epoch} did not end" in outcome.reason
        assert coordinator.change(members).committed


def test_what_was_replaced_cannot_write() -> None:
    """A server behind a broken network goes on, and its successor is already at work."""
    with running() as job:
        coordinator = job.coordinator()
        two_members(job, coordinator)
        former = job.processes["server, incarnation 0"]
        trainer = job.processes["trainer, incarnation 0"].member
        former.silent = True
        with former.member.work() as epoch:
            trainer.admit(epoch, former.member.name)
            job.mixed = []  # the former one works on, as nobody can tell it
            job.begin("server", 1)
            outcome = coordinator.change({"server": 1, "trainer": 0})
            assert outcome.committed
            wait_until(lambda: trainer.view.epoch == outcome.epoch, "not entered")
            words = (
                f"trainer, incarnation 0 is in epoch {outcome.epoch} and refuses what server, "
                f"incarnation 0 sent in epoch {epoch}"
            )
            with pytest.raises(StaleEpochError, match=words):
                trainer.admit(epoch, former.member.name)
            trainer.admit(outcome.epoch, "server, incarnation 1")
        former.silent = False
        wait_until(former.has_ended, "the former server goes on")
        words = f"the job is in epoch {outcome.epoch}, and server, incarnation 0 is not of it"
        assert str(former.error) == words
        job.mixed = []


def test_a_message_of_an_epoch_that_has_not_begun_waits_for_it() -> None:
    with running() as job:
        coordinator = job.coordinator()
        members = two_members(job, coordinator)
        trainer = job.processes["trainer, incarnation 0"].member
        with pytest.raises(CommunicationError, match="is in epoch 7, which did not begin within"):
            trainer.admit(7, "server, incarnation 0", timeout_s=0.01)
        threading.Timer(0.05, coordinator.change, args=[members]).start()
        trainer.admit(2, "server, incarnation 0")


@pytest.mark.parametrize("word", ["offer", "ask", "verdict", "view"])
def test_a_successor_of_the_coordinator_ends_what_it_had_begun(word: str) -> None:
    def before(action: str, key: str) -> None:
        if armed.is_set() and action == "set" and key.endswith(word):
            raise RuntimeError("the coordinator's host is gone")

    armed = threading.Event()
    with running() as job:
        coordinator = job.coordinator(before=before)
        members = two_members(job, coordinator)
        armed.set()
        with pytest.raises(CommunicationError, match="store is lost"):
            coordinator.change(members, b"second")
        with no_hang():
            successor = job.coordinator()
        # the verdict decides, and was published before the view
        assert successor.view.epoch == (2 if word == "view" else 1)
        with no_hang():
            outcome = successor.change(members, b"third")
        assert outcome.committed
        for process in job.processes.values():
            wait_until(entered(process, outcome.epoch), "a member did not enter")
            payloads = [payload for _, payload in process.loaded]
            assert payloads == [b"", *([b"second"] if word == "view" else []), b"third"]


@SAMPLED
def test_one_that_missed_the_verdict_is_out() -> None:
    """Its promise ended while its network was down; it must not work on in the former epoch."""
    with running() as job:
        coordinator = job.coordinator(STALL_S / 3)
        members = two_members(job, coordinator)
        server = job.processes["server, incarnation 0"]

        def before(_action: str, key: str) -> None:
            if key == "2/verdict" and key in job.values:
                time.sleep(1.1 * STALL_S)

        server.before = before
        assert coordinator.change(members).committed
        wait_until(server.has_ended, "it works on")
        words = "the job is in epoch 2, and server, incarnation 0 missed its beginning"
        assert str(server.error) == words
        job.mixed = []


def test_processes_that_are_killed_or_stopped_are_replaced() -> None:
    """Through torch's store: a trainer is killed, a server stopped, taken for lost and woken."""
    port = free_port()
    store: Any = dist.TCPStore("127.0.0.1", port, is_master=True)  # pyright: ignore[reportPrivateImportUsage]
    variables = environment()
    script = str(Path(__file__).with_name("members_job.py"))
    roles = {
        name: Role(
            name=name,
            argv=command(script, str(port), name.split()[0], number=0),
            env=variables,
        )
        for name in ("trainer", "server", "server again")
    }
    lost: set[str] = set()
    pids: dict[str, int] = {}

    def enter(coordinator: Membership, started: Mapping[str, int]) -> int:
        """Change to the view of `started` processes, and wait until all have entered it."""
        members = {name.split()[0]: incarnation for name, incarnation in started.items()}
        with no_hang():
            outcome = coordinator.change(members, b"rows")
        assert outcome.committed, outcome.reason
        entered: set[str] = set()
        while entered != set(started):
            name, message = processes.receive(HANG_S)
            assert message is not None, f"{name} ended"
            assert "error" not in message, message
            if name in started and message.get("epoch") == outcome.epoch:
                assert (message["payload"], message["incarnation"]) == ("rows", started[name])
                entered.add(name)
                pids[name] = message["pid"]
        return outcome.epoch

    with Roles(roles) as processes:
        for name in ("trainer", "server"):
            processes.send(name, {"incarnation": 0})
        processes.send("server again", {"incarnation": 1})
        limits_s = {"load_s": HANG_S, "promise_s": HANG_S}
        coordinator = Membership(own_connection(store), lost=lambda: lost, **limits_s)
        enter(coordinator, {"trainer": 0, "server": 0})
        os.kill(pids["trainer"], signal.SIGKILL)
        lost.add("trainer, incarnation 0")
        assert "incarnation 0 ended" in coordinator.change(coordinator.view.members).reason
        processes.restart("trainer")
        processes.send("trainer", {"incarnation": 1})
        enter(coordinator, {"trainer": 1, "server": 0})
        os.kill(pids["server"], signal.SIGSTOP)
        last = enter(coordinator, {"trainer": 1, "server again": 1})
        os.kill(pids["server"], signal.SIGCONT)
        name, message = processes.receive(HANG_S)
        words = f"the job is in epoch {last}, and server, incarnation 0 is not of it"
        assert (name, message) == ("server", {"out": words})
