"""One rank of a job that changes plans all the time; run by test_swap_job.py.

Arguments: how many calls to make, the seed, and optionally a rank that is killed in the middle of
a change, and the word of the protocol that it is about to say then. Prints one line of JSON: what
the calls and changes were, or how they ended.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed
from headrace._native import DataType
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.collectives.run.switch import PLAN
from headrace.collectives.run.torch.group import HeadraceGroup
from headrace.errors import CommunicationError, InputError
from headrace.job.agreement import (
    Follower,
    Proposer,
    RoundOutcome,
    Store,
    own_connection,
    rank_names,
)
from headrace.topology.presets import uniform
from tests.waiting import ENDLESS_S, HANG_S

SIZES = (1, 2, 7, 300, 5_000, 40_000)
MAKERS = ("ring", "full_exchange", "double_binary_tree")


def books(ranks: int) -> list[PlanBook]:
    """Books with different programs for the same calls."""
    topology = uniform(ranks, bytes_per_s=1e9)
    topology = replace(topology, hosts=("here",), rank_host=(0,) * ranks)
    return [
        build_book(
            topology,
            collectives=[Collective.ALLREDUCE],
            sizes=[1 << 10, 1 << 18],
            generators=[generator],
        )
        for generator in TEMPLATES
        if generator.name in MAKERS
    ]


class Deadly:
    """A store whose user is killed when about to say a word for the third time."""

    def __init__(self, store: Store, word: str) -> None:
        self._store, self._word, self._left = store, f"/{word}", 3
        self.get, self.check, self.delete_key = store.get, store.check, store.delete_key

    def set(self, key: str, value: str | bytes) -> None:
        self._left -= self._word in key
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._store.set(key, value)


class Agent:
    """A rank's background threads: a follower, and at rank 0 the proposer."""

    def __init__(self, group: HeadraceGroup, seed: int, last_word: str | None) -> None:
        self.group = group
        self.last_word = last_word
        self.rank, self.ranks = group.rank(), group.size()
        self.chance = random.Random(seed)
        self.stop = threading.Event()
        self.finished = threading.Event()  # no more proposals
        self.outcomes: list[RoundOutcome] = []
        self.probes: list[tuple[int, int]] = []  # (epoch, number of the call before it)
        self.errors: list[str] = []
        self.threads = [threading.Thread(target=self._guarded, args=(self._follow,), daemon=True)]
        if self.rank == 0:
            self.threads.append(
                threading.Thread(target=self._guarded, args=(self._propose,), daemon=True)
            )
        for thread in self.threads:
            thread.start()

    def connection(self) -> Store:
        store = own_connection(self.group.store)
        return store if self.last_word is None else Deadly(store, self.last_word)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    def _follow(self) -> None:
        follower = Follower(
            self.connection(),
            f"rank {self.rank}",
            self.group.switch,
            handlers={
                PLAN: self.group.switch.loaded,
                "probe": lambda payload: self.group.switch.drained(self._probe(payload)),
                "refused": self._refuse,
            },
            stop=self.stop,
        )
        while not self.stop.wait(0.002):
            if (outcome := follower.poll()) is not None:
                self.outcomes.append(outcome)

    def _probe(self, payload: bytes) -> Callable[[], None]:
        """Between two calls, run programs of one's own on the group's executor."""
        program = lower(templates.ring(Demand(collective=Collective.ALLGATHER, ranks=self.ranks)))
        loaded = self.group.executor.load(program, verify(program))

        def probe() -> None:
            executor = self.group.executor
            assert executor.finished() == executor.submitted()
            self.probes.append((executor.epoch, executor.submitted()))
            for _ in range(3):
                values = np.full(self.ranks, -1, np.int64)
                values[self.rank] = 10 * self.rank + int(payload)
                rows = [(values.ctypes.data, 1, self.ranks, 1)]
                executor.run(executor.prepare(loaded, rows, dtype=DataType.int64))
                assert values.tolist() == [10 * r + int(payload) for r in range(self.ranks)]

        return probe

    def _refuse(self, _payload: bytes) -> Callable[[], None]:
        if self.rank == self.ranks - 1:
            raise InputError("this rank wants no such thing")
        return lambda: None

    def _propose(self) -> None:
        proposer = Proposer(self.connection(), rank_names(self.ranks), load_s=20.0, promise_s=3.0)
        raw = [book.to_artifact().to_bytes() for book in books(self.ranks)]
        while not self.finished.is_set():
            kind = self.chance.choice([PLAN, PLAN, PLAN, "probe", "refused"])
            payload = self.chance.choice(raw) if kind == PLAN else b"5"
            proposer.propose(kind, payload)
            time.sleep(self.chance.random() * 0.005)

    def end(self) -> None:
        self.finished.set()
        if self.rank == 0:
            self.threads[1].join(HANG_S)
        dist.barrier()  # no rank stops following during a round
        self.stop.set()
        self.threads[0].join(HANG_S)
        assert not any(thread.is_alive() for thread in self.threads)
        dist.barrier()  # rank 0 runs the store, which no thread uses any more


def expected(call: int, elements: int, ranks: int) -> torch.Tensor:
    return (torch.arange(elements) * ranks + ranks * (ranks - 1) // 2 + call * ranks).to(
        torch.int64
    )


def train(agent: Agent, calls: int, seed: int) -> list[tuple[int, int]]:
    """Make and check the calls; (number, epoch) of each."""
    same, own = random.Random(seed), random.Random(1000 * seed + agent.rank)
    ranks, group = agent.ranks, agent.group
    pending: list[tuple[int, torch.Tensor, dist.Work]] = []
    epochs: list[tuple[int, int]] = []

    def check(call: int, tensor: torch.Tensor) -> None:
        assert torch.equal(tensor, expected(call, tensor.numel(), ranks)), f"call {call} is wrong"

    for call in range(calls):
        elements, later = same.choice(SIZES), same.random() < 0.5
        if own.random() < 0.02:
            time.sleep(own.random() * 0.01)
        tensor = torch.arange(elements, dtype=torch.int64) + agent.rank + call
        work = dist.all_reduce(tensor, async_op=later)
        epochs.append((group.executor.submitted() - 1, group.switch.epoch))
        if later:
            assert work is not None
            pending.append((call, tensor, work))
        else:
            check(call, tensor)
        if same.random() < 0.2:
            source = torch.full((9,), float(call)) if agent.rank == call % ranks else torch.zeros(9)
            dist.broadcast(source, call % ranks)
            epochs.append((group.executor.submitted() - 1, group.switch.epoch))
            assert (source == call).all()
        while len(pending) > same.randrange(12):
            number, tensor, work = pending.pop(same.randrange(len(pending)))
            work.wait()
            check(number, tensor)
    for number, tensor, work in pending:
        work.wait()
        check(number, tensor)
    return epochs


def main(calls: int, seed: int, dying: int, last_word: str) -> None:
    dist.init_process_group("headrace", timeout=timedelta(seconds=ENDLESS_S))
    group = dist.distributed_c10d._get_default_group()
    assert isinstance(group, HeadraceGroup)
    half = dist.new_group([0, 1])
    agent = Agent(group, seed, last_word if group.rank() == dying else None)
    started = time.monotonic()
    try:
        epochs = train(agent, calls, seed)
    except CommunicationError as error:
        print(
            json.dumps(
                {
                    "error": str(error),
                    "changes": group.switch.epoch,
                }
            ),
            flush=True,
        )
        os._exit(0)
    seconds = time.monotonic() - started
    agent.end()
    if agent.rank < 2:  # a part of the job has templates, whatever the job's plan is
        assert isinstance(half, HeadraceGroup)
        ones = torch.ones(5)
        dist.all_reduce(ones, group=half)
        assert half.switch.epoch == 0
        assert (ones == 2).all()
    report = {
        "epochs": epochs,
        "outcomes": [[o.epoch, o.kind, o.at, o.reason] for o in agent.outcomes],
        "probes": agent.probes,
        "errors": agent.errors,
        "seconds": seconds,
        "kinds": Counter(o.kind for o in agent.outcomes),
    }
    dist.destroy_process_group()
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    calls, seed, dying, last_word = [*sys.argv[1:], "-1", ""][:4]
    main(int(calls), int(seed), int(dying), last_word)
