"""A DDP job under way whose network changes: plans are swapped, results stay; a death is an error.

On loopback, where the kernel holds every connection to a pace that the job changes as it runs.
"""

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.collectives.adapt import session
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import build_book
from headrace.collectives.settings import CollectiveSettings
from headrace.testbed import Testbed, TestbedSpec, rank_environment, run_ranks
from tests.collectives.adapt.ddp_job import relieves
from tests.conformance import warm
from tests.waiting import ENDLESS_S, HANG_S, JOB_S

WHOLE_JOB = pytest.mark.sampled(1, of="whole jobs")

JOB = Path(__file__).with_name("ddp_job.py")
RANKS = 4
WIDTH = 256
PACED_AT, PACE = 20, 1_500_000
MOST_STEPS = 5_000


@dataclass
class Said:
    """Output and exit codes of the ranks of a job."""

    codes: list[int] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)

    def line(self, rank: int, text: str) -> None:
        try:
            found = json.loads(text)
        except ValueError:
            self.other.append(f"{rank}: {text}")
            return
        if "step" in found:
            self.steps.append(found)
        else:
            self.ends[rank] = found


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    file = tmp_path_factory.mktemp("testbed") / "testbed.toml"
    file.write_text(
        'name = "adapt"\n[defaults]\nhost_rate = "100mbit"\nuplink_rate = "400mbit"\n'
        "[[racks]]\nhosts = 2\n[[racks]]\nhosts = 2\n"
    )
    with Testbed.up(TestbedSpec.load(file), fallback=True) as up:
        yield up


def job(testbed: Testbed, folder: Path, *argv: object) -> tuple[list[str], dict[str, str]]:
    """The command of every rank, and what its environment has beside the testbed's."""
    book = folder / "book"
    build_book(
        testbed.spec.topology("rack"),
        groups=((0, 1), (2, 3)),
        collectives=(Collective.ALLREDUCE,),
        sizes=(1 << 10, 1 << 20),
    ).save(book)
    variables = {**warm.environment(), "HEADRACE_PLAN_BOOK": str(book)}
    return warm.command(str(JOB), *map(str, argv)), variables


def run(testbed: Testbed, folder: Path, *argv: object, **env: str) -> Said:
    said = Said()
    command, variables = job(testbed, folder, *argv)
    said.codes = run_ranks(
        testbed,
        command,
        range(RANKS),
        env={**variables, **env},
        on_line=said.line,
        timeout_s=JOB_S,
    )
    return said


@pytest.fixture(scope="module")
def story(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> tuple[Said, Path]:
    folder = tmp_path_factory.mktemp("story")
    said = run(
        testbed,
        folder,
        "headrace",
        WIDTH,
        MOST_STEPS,
        f"pace:{PACED_AT}:{PACE}",
        HEADRACE_ADAPT_LOG=str(folder / "log"),
        HEADRACE_METRICS=str(folder / "{rank}.prom"),
    )
    assert said.codes == [0] * RANKS, said.other
    return said, folder


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


@WHOLE_JOB
def test_a_slow_host_is_noticed_and_plans_are_changed_for_it(story: tuple[Said, Path]) -> None:
    """The gain and its delay are bars of the benchmark `network` (`autotune-...`)."""
    said, folder = story
    done = events(folder)
    assert relieves(done), done
    assert PACED_AT < len(said.steps) < MOST_STEPS
    assert [step["step"] for step in said.steps] == list(range(len(said.steps)))


@WHOLE_JOB
def test_ranks_agree_and_learn_what_gloo_learns(
    testbed: Testbed, story: tuple[Said, Path], tmp_path: Path
) -> None:
    said, _ = story
    assert len({end["digest"] for end in said.ends.values()}) == 1
    gloo = run(testbed, tmp_path, "gloo", WIDTH, len(said.steps))
    assert gloo.codes == [0] * RANKS, gloo.other
    losses = [step["loss"] for step in said.steps]
    assert losses == pytest.approx([step["loss"] for step in gloo.steps], rel=1e-4)
    assert said.ends[0]["head"] == pytest.approx(gloo.ends[0]["head"], rel=1e-3, abs=1e-5)


@WHOLE_JOB
def test_metrics_are_written_by_every_rank(story: tuple[Said, Path]) -> None:
    _, folder = story
    for rank in range(RANKS):
        text = (folder / f"{rank}.prom").read_text()
        assert f'headrace_sent_bytes_total{{peer="{(rank + 1) % RANKS}",rank="{rank}"}}' in text
        assert ("headrace_step_seconds" in text) == (rank == 0)
    swaps = [event["why"] for event in events(folder) if event["event"] == "swap"]
    for why in set(swaps):
        line = f'headrace_swaps_total{{rank="0",why="{why}"}} {swaps.count(why)}.0'
        assert line in (folder / "0.prom").read_text()


@pytest.mark.slow
def test_a_rank_that_is_killed_is_a_clear_error(testbed: Testbed, tmp_path: Path) -> None:
    command, variables = job(
        testbed, tmp_path, "headrace", WIDTH, 400, "pace:15:3000000", "die:21:1"
    )
    ranks = [
        testbed.popen(
            host.name,
            command,
            env={**rank_environment(testbed, range(RANKS), rank), **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(testbed.hosts)
    ]
    try:
        said = [process.communicate(timeout=JOB_S)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert ranks[1].returncode == -9
    for rank in (0, 2, 3):
        assert ranks[rank].returncode == 1, said[rank]
        assert "CommunicationError: rank 1 died" in said[rank], said[rank]


@pytest.mark.slow
def test_a_job_that_just_ends_is_not_held_up(testbed: Testbed, tmp_path: Path) -> None:
    said = run(testbed, tmp_path, "headrace", WIDTH, 400, "leave:8:0")  # within JOB_S
    assert said.codes == [0] * RANKS, said.other
    assert len(said.steps) == 8
    assert not [line for line in said.other if "Error" in line]


@pytest.mark.slow
def test_adaptation_can_be_switched_off(testbed: Testbed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = run(
        testbed, tmp_path, "headrace", WIDTH, 5,
        HEADRACE_ADAPT="off", HEADRACE_ADAPT_LOG=str(log),
    )  # fmt: skip
    assert said.codes == [0] * RANKS, said.other
    assert not log.exists()


def test_a_thread_that_the_system_refuses_ends_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator went on by itself, behind a warning that there is no adaptation."""
    began, ended = threading.Event(), threading.Event()

    def start(thread: threading.Thread, started: Any = threading.Thread.start) -> None:
        if thread.name == "headrace-agent":
            assert began.wait(HANG_S)
            raise RuntimeError("can't start new thread")
        started(thread)

    planner = SimpleNamespace(start=began.set, close=ended.set)
    parts: dict[str, Any] = {
        "own_connection": None,
        "RunningJob": None,
        "BackgroundPlanner": planner,
        "AdaptationCoordinator": SimpleNamespace(turn=lambda _now: ENDLESS_S),
        "Agent": SimpleNamespace(run=lambda: None),
    }
    for name, part in parts.items():
        monkeypatch.setattr(session, name, lambda *_, part=part, **__: part)
    monkeypatch.setattr(threading.Thread, "start", start)
    book: Any = SimpleNamespace(topology=SimpleNamespace(rank_host=[0, 1]))
    switch: Any = SimpleNamespace(record=lambda: None)
    executor: Any = SimpleNamespace(rank=0)
    store = SimpleNamespace(clone=lambda: None)
    assert session.follow(store, executor, switch, book, CollectiveSettings()) is None
    assert ended.is_set()
