"""``headrace collectives trace``: on processes, on a testbed, under a launcher."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.collectives.cli import app as collectives
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import build_book
from headrace.collectives.trace import launch
from headrace.errors import CommunicationError, InputError
from headrace.testbed import privileges
from headrace.topology.presets import uniform
from tests.collectives.trace.test_trace import check_events
from tests.conformance.launch import outputs, ranks

TESTBED = """
name = "small"
[defaults]
host_rate = "400mbit"
uplink_rate = "100mbit"
[[racks]]
hosts = 2
[[racks]]
hosts = 1
"""


def run(*arguments: object, env: Mapping[str, str | None] | None = None) -> str:
    settings = {"COLUMNS": "100", "RANK": None, "WORLD_SIZE": None, **(env or {})}
    outcome = CliRunner().invoke(collectives.app, ["trace", *map(str, arguments)], env=settings)
    if outcome.exception is not None:
        raise outcome.exception
    assert outcome.exit_code == 0
    return outcome.output


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    whole = json.loads(path.read_text())
    return whole["traceEvents"], whole["otherData"]


def test_connections_are_as_many_as_jobs_have(tmp_path: Path) -> None:
    settings = {"HEADRACE_SHARED_MEMORY": "off", "HEADRACE_CHANNELS": "2"}
    printed = run("--ranks", 2, "--size", "1M", "--repeats", 1, "-o", tmp_path / "t", env=settings)
    assert "send to rank 1, channel 1" in printed


def test_processes_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    printed = run("--ranks", 3, "--size", "300K", "--repeats", 3, "-o", file)
    events, about = read(file)
    check_events(events, ranks=3, groups=("measured",))
    assert about["bytes"] == 300 << 10
    assert about["measured_us"] == sorted(about["all_measured_us"])[1]
    assert "predicted_us" not in about
    assert "predicted" not in printed
    assert "median of 3" in printed
    assert "receive from rank 2" in printed
    assert "every result was right. All ranks read one clock." in printed


def test_by_a_plan_book_beside_its_prediction(tmp_path: Path) -> None:
    book = tmp_path / "book"
    build_book(
        uniform(3), collectives=[Collective.ALLGATHER, Collective.BROADCAST], sizes=[1 << 16]
    ).save(book)
    wanted = ("--size", "64K", "--repeats", 1, "-o", tmp_path / "t.json")
    printed = run("--plan-book", book, "--collective", "broadcast", "--root", 2, *wanted)
    events, about = read(tmp_path / "t.json")
    check_events(events, ranks=3, groups=("measured", "predicted"))
    assert about["root"] == 2
    assert about["plan"].startswith("plan book: ")
    assert about["predicted_us"] > 0
    assert f"predicted for {about['predicted_for']}" in printed
    with pytest.raises(InputError, match=r"book is for 3 ranks, this runs on 2"):
        run("--plan-book", book, "--ranks", 2, *wanted)


def test_a_testbed_is_its_own_prediction(tmp_path: Path) -> None:
    if reason := privileges.unavailable_reason():
        pytest.skip(f"needs network namespaces: {reason}")
    (tmp_path / "bed.toml").write_text(TESTBED)
    file = tmp_path / "t.json"
    printed = run("--testbed", tmp_path / "bed.toml", "--size", "512K", "--repeats", 1, "-o", file)
    events, about = read(file)
    check_events(events, ranks=3, groups=("measured", "predicted"))
    assert about["predicted_for"] == "small"
    assert about["measured_us"] > 0.3 * about["predicted_us"], "the links are not shaped"
    assert "predicted for small" in printed


@pytest.mark.slow
def test_the_ranks_of_a_launcher(tmp_path: Path) -> None:
    command = ("collectives", "trace", "--size", "64K", "--repeats", "2", "-o")
    (tmp_path / "main.py").write_text("from headrace.cli.main import main\n\nmain()\n")
    with ranks(2, tmp_path / "main.py", *command, str(tmp_path / "t.json")) as processes:
        printed = outputs(processes)
    assert [process.returncode for process in processes] == [0, 0], printed
    assert "every result was right" in printed[0]
    assert printed[1] == ""
    check_events(read(tmp_path / "t.json")[0], ranks=2, groups=("measured",))


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    out = ("-o", tmp_path / "t.json")
    with pytest.raises(InputError, match="--ranks is for processes of this machine"):
        run("--ranks", 2, "--testbed", tmp_path / "bed", *out)
    with pytest.raises(InputError, match="--collective is custom, which only a demand describes"):
        run("--collective", "custom", *out)
    with pytest.raises(InputError, match="--order has no effect without --testbed"):
        run("--ranks", 2, "--order", "interleaved", *out)
    with pytest.raises(InputError, match="--root is 7, needs 0 to 1"):
        run("--ranks", 2, "--collective", "reduce", "--root", 7, *out)
    with pytest.raises(InputError, match="--root is 1, but allreduce has no root"):
        run("--ranks", 2, "--root", 1, *out)  # by a template in place of the plan book's plan
    with pytest.raises(InputError, match="size is 3 bytes, needs at least 4"):
        run("--ranks", 2, "--size", "3", *out)
    assert not (tmp_path / "t.json").exists()


def test_a_rank_that_dies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_AGENT", (sys.executable, "-c", DYING))
    message = "tracing failed: rank 1 ended with exit code 7; last output of .*\nno such device"
    with pytest.raises(CommunicationError, match=message):
        run("--ranks", 3, "--size", "64K", "-o", tmp_path / "t.json")


DYING = """
import sys
from headrace.collectives.trace.agent import trace_as_rank
from headrace.launch.worker import run_worker

def work(receive, send):
    task = receive()
    if task["rank"] == 1:
        print("no such device", file=sys.stderr)
        sys.exit(7)
    messages = iter([task])
    trace_as_rank(lambda: next(messages, None) or receive(), send)

run_worker(work)
"""
