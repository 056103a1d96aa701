"""Other codecs are announced to the adaptation of plans, which else sees a changed network.

A real job records its calls. Its steps are then played to the coordinator, with the time that their
bytes take on a network that does not change: on a busy machine, measured times would say otherwise.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.collectives.adapt.act.background import RebookRequest, Response
from headrace.collectives.adapt.coordinator import AdaptationCoordinator
from headrace.collectives.adapt.observe.port_changes import bandwidth
from headrace.collectives.adapt.observe.traffic import Traffic
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.job.steps import CHANGED, MARK
from headrace.topology import Topology
from headrace.topology.presets import uniform
from tests.conformance.launch import outputs, ranks, results

JOB = Path(__file__).with_name("announced_job.py")
RANKS = 2
BYTES_PER_S = 12.5e6
COMPUTE_S = 0.2


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """Codecs and calls of the job, the same on both ranks."""
    with ranks(RANKS, JOB) as processes:
        first, second = results(outputs(processes))
    assert first == second
    return first


def steps_of(recorded: dict[str, Any]) -> list[list[Hashable]]:
    """Return the keys of every step, the mark of its end included."""
    steps: list[list[Hashable]] = [[]]
    for key in recorded["keys"]:
        steps[-1].append((Collective(key[0]), key[1]) if isinstance(key, list) else key)
        if key is MARK:
            steps.append([])
    assert steps.pop() == []
    return steps


def changed_steps(recorded: dict[str, Any]) -> list[int]:
    """Return the steps from which on another codec is in force."""
    levels = recorded["levels"]
    return [number for number, (old, new) in enumerate(pairwise(levels), 1) if new != old]


def test_a_job_announces_other_codecs_at_the_step_that_changes_them(
    recorded: dict[str, Any],
) -> None:
    numbers = changed_steps(recorded)
    assert [recorded["levels"][number] for number in numbers] == ["powersgd:1", "none"]
    steps = steps_of(recorded)
    assert len(steps) == len(recorded["levels"])
    assert [number for number, keys in enumerate(steps) if CHANGED in keys] == numbers


@dataclass
class PlayedJob:
    """The job as rank 0's coordinator sees it: the next step, whenever it asks for calls."""

    topology: Topology
    steps: list[list[Hashable]]
    now_s: float = 0.0
    epoch: int = 0
    probes: int = 0
    swaps: list[PlanBook] = field(default_factory=list)
    sent_bytes: float = 0.0

    def calls(self) -> Sequence[tuple[Hashable, float]]:
        timed: list[tuple[Hashable, float]] = []
        self.now_s += COMPUTE_S
        for key in self.steps.pop(0):
            timed.append((key, self.now_s))
            if isinstance(key, tuple):
                self.sent_bytes += key[1]
                self.now_s += key[1] / BYTES_PER_S
        return timed

    def gather(self, *, hurry: bool) -> Traffic | None:
        sent = np.full((RANKS, RANKS), self.sent_bytes)
        np.fill_diagonal(sent, 0.0)
        self.sent_bytes = 0.0
        rates = np.where(sent > 0, bandwidth(self.topology), np.nan)
        return Traffic(sent_bytes=sent, rate_bytes_per_s=rates, rtt_us=np.full(sent.shape, 100.0))

    def swap(self, book: PlanBook) -> int | None:
        self.swaps.append(book)
        return None

    def probe(self) -> Topology | None:
        self.probes += 1
        return self.topology


class NoPlanner:
    """Plans nothing."""

    def begin(self, request: RebookRequest) -> None:
        pass

    def cancel(self) -> None:
        pass

    def poll(self) -> Response | None:
        return Response(error="plans nothing")


def events(steps: list[list[Hashable]]) -> list[str]:
    """Return the names of what adaptation does while these steps are made."""
    topology = uniform(RANKS, bytes_per_s=BYTES_PER_S)
    book = build_book(topology, collectives=[Collective.ALLREDUCE], sizes=[1 << 10, 1 << 20])
    job = PlayedJob(topology, steps)
    coordinator = AdaptationCoordinator(job, book, NoPlanner())
    while job.steps:
        coordinator.turn(job.now_s)
    return [event["event"] for event in coordinator.records.events]


def test_other_codecs_are_no_changed_network(recorded: dict[str, Any]) -> None:
    names = events(steps_of(recorded))
    assert names.count("announced") == len(changed_steps(recorded))
    assert not {"change", "plan", "probe", "swap"} & set(names), names


def test_without_announcements_they_are(recorded: dict[str, Any]) -> None:
    silent = [[key for key in keys if key != CHANGED] for keys in steps_of(recorded)]
    names = events(silent)
    assert "change" in names
    assert "announced" not in names
