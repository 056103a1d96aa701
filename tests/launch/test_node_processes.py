"""Processes that a program on another machine asks for: their output, ends, and lease."""

import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

import pytest

from headrace.launch import node_processes
from headrace.launch.node_processes import Command, NodeProcesses, ProcessEvent
from headrace.settings import child_environment
from tests.launch.test_roles import assert_ends
from tests.waiting import HANG_S, no_hang

MESSAGES = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}


def command(script: str, folder: Path | str = "/", **streams: int) -> Command:
    return Command(
        argv=["sh", "-c", script],
        folder=str(folder),
        env={"WORD": "word", "HOME": None},
        streams=MESSAGES | streams,
    )


def events_until_end(processes: NodeProcesses, number: int) -> list[ProcessEvent]:
    events: list[ProcessEvent] = []
    with no_hang():
        while not events or events[-1][0] != "end":
            events += processes.events(number, 0.5)
    return events


def test_a_process_has_its_folder_environment_and_streams(tmp_path: Path) -> None:
    processes = NodeProcesses()
    processes.start(4, command("pwd; echo $WORD$HOME; echo error >&2; exit 3", tmp_path))
    events = events_until_end(processes, 4)
    assert [event for event in events if event[0] != "stderr"] == [
        ("stdout", str(tmp_path)),
        ("stdout", "word"),
        ("end", 3),
    ]
    assert ("stderr", "error") in events
    processes.start(5, command("echo error >&2; kill -9 $$", stdin=DEVNULL, stderr=STDOUT))
    assert events_until_end(processes, 5) == [("stdout", "error"), ("end", -9)]
    assert not processes.signal(5, 15)


def test_input_is_passed_on_until_it_is_closed() -> None:
    processes = NodeProcesses()
    processes.start(0, command("cat; echo end"))
    text = b"word" * 1_000_000 + b"\n"  # beyond any pipe
    processes.write(0, text)
    processes.write(0, b"")
    processes.write(0, b"after the end")
    assert events_until_end(processes, 0) == [
        ("stdout", text.decode().rstrip()),
        ("stdout", "end"),
        ("end", 0),
    ]


@pytest.mark.parametrize("folder", ["/", "/no-such-folder"])
def test_a_command_that_cannot_be_started_says_why(folder: str) -> None:
    processes = NodeProcesses()
    argv = ["no-such-program"]
    processes.start(0, Command(argv=argv, folder=folder, env={}, streams=MESSAGES))
    assert events_until_end(processes, 0) == [
        (
            "stderr",
            f"no-such-program cannot be started in {folder}: [Errno 2] No such file or directory"
            + ("" if folder == "/" else f": {folder!r}"),
        ),
        ("end", 1),
    ]


def test_a_start_that_fails_before_there_is_a_process_is_an_error() -> None:
    """The caller of `start` waited for ever, unless the error was an OSError."""
    with pytest.raises(ValueError, match="null byte"):
        NodeProcesses().start(0, command("echo \0"))


def first_line(processes: NodeProcesses) -> int:
    with no_hang():
        while not (events := processes.events(0, 0.5)):
            pass
    return int(events[0][1])


def test_a_process_that_nobody_asks_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_processes, "LEASE_S", 0.5)
    monkeypatch.setattr(node_processes, "_LEASE_CHECK_S", 0.1)
    processes = NodeProcesses()
    processes.start(0, command("echo $$; sleep 600"))
    assert_ends(first_line(processes))
    assert events_until_end(processes, 0)[-1] == ("end", -9)


PARENT = """
import os, signal
from tests.launch.test_node_processes import NodeProcesses, command, first_line

processes = NodeProcesses()
processes.start(0, command("echo $$; exec sleep 600"))
print(first_line(processes), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_does_not_outlive_what_watches_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT],
        env=child_environment({"PYTHONPATH": str(Path.cwd())}),
        stdout=PIPE,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == -9
    assert_ends(int(done.stdout))
