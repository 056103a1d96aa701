"""Planning in a process of its own gives the plans of this process, and can be ended."""

import threading
import time
from pathlib import Path

from headrace.collectives.adapt.replan import BackgroundPlanner, plan_calls
from headrace.collectives.demand import Collective
from tests.collectives.adapt.clusters import network

CALLS = [
    (Collective.ALLREDUCE, 1 << 20),
    (Collective.ALLREDUCE, 1 << 10),
    (Collective.BROADCAST, 1 << 20),
]


def test_the_process_plans_what_is_called(tmp_path: Path) -> None:
    topology = network(tmp_path, (2, 2))
    here = plan_calls(topology, None, CALLS)
    assert here is not None
    there = BackgroundPlanner(threading.Event())(topology, here, CALLS)
    assert there is not None
    assert there.digest == here.digest
    assert {entry.collective for entry in there.entries} == {Collective.ALLREDUCE}


def test_nothing_called_is_nothing_planned(tmp_path: Path) -> None:
    assert plan_calls(network(tmp_path, (2, 2)), None, [(Collective.BROADCAST, 8)]) is None


def test_it_ends_when_told_to(tmp_path: Path) -> None:
    topology = network(tmp_path, (2, 2))
    book = plan_calls(topology, None, CALLS)
    assert book is not None
    stop = threading.Event()
    stop.set()
    began = time.monotonic()
    assert BackgroundPlanner(stop)(topology, book, CALLS) is None
    assert time.monotonic() - began < 5.0
