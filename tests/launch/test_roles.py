"""Roles as real processes: messages, restart, death, and the end of all that they started."""

import os
import queue
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CommunicationError
from headrace.launch import roles
from headrace.launch.roles import LINES, Message, Role, Roles, start_local
from headrace.testbed import Testbed, TestbedSpec
from tests.forked import status_of_child
from tests.waiting import HANG_S, wait_until

WORKER = Path(__file__).with_name("worker.py")


def role(name: str = "a", *arguments: str, **options: Any) -> Role:
    return Role(name=f"role {name}", argv=[sys.executable, str(WORKER), *arguments], **options)


def answer(of: Roles[Any], key: Any, message: Message | None = None) -> Message:
    """The next message of a role, to a command if there is one."""
    if message is not None:
        of.send(key, message)
    found, body = of.receive(HANG_S)
    assert found == key
    assert body is not None
    return body


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def assert_ends(pid: int) -> None:
    wait_until(lambda: not is_running(pid), f"process {pid} ends")


def test_messages_of_any_length_there_and_back() -> None:
    with Roles({"a": role()}) as started:
        pid = answer(started, "a")["pid"]
        assert answer(started, "a", {"do": "echo", "n": 1}) == {"n": 1}
        text = "x" * 3_000_000  # beyond any pipe
        assert answer(started, "a", {"do": "echo", "text": text}) == {"text": text}
        assert started.exit_code("a") is None
        started.send("a", {"do": "end"})
        assert started.receive(HANG_S) == ("a", None)
        assert started.exit_code("a") == 0
    assert not is_running(pid)


def test_roles_are_told_apart_and_have_their_environment() -> None:
    script = "import os; print('{\"found\": \"' + os.environ['WHAT'] + '\"}')"
    argv = [sys.executable, "-c", script]
    both = {
        n: Role(name=f"rank {n}", argv=argv, env={"WHAT": f"number {n}", "HOME": None})
        for n in (1, 2)
    }
    with Roles(both) as started:
        found = [started.receive(HANG_S) for _ in range(4)]
    assert sorted(key for key, _ in found) == [1, 1, 2, 2]
    assert {key: body["found"] for key, body in found if body} == {1: "number 1", 2: "number 2"}


def test_a_role_is_added_with_streams_of_its_own() -> None:
    with Roles({"a": role()}) as started:
        answer(started, "a")
        script = "import sys; print('of output', flush=True); print('of errors', file=sys.stderr)"
        argv = [sys.executable, "-c", script]
        started.add("b", Role(name="role b", argv=argv, streams=LINES))
        lines = [started.receive_line(HANG_S) for _ in range(3)]
        assert lines == [("b", "of output"), ("b", "of errors"), ("b", None)]
        assert started.exit_code("b") == 0
        started.keep_line("b", "of output")
        assert started.last_lines("b") == ["of output"]
        assert answer(started, "a", {"do": "echo", "n": 1}) == {"n": 1}


def test_a_restarted_role_is_another_process_whose_messages_are_its_own() -> None:
    with Roles({"a": role("a"), "b": role("b")}) as started:
        pids = {}
        for _ in range(2):
            key, body = started.receive(HANG_S)
            assert body is not None
            pids[key] = body["pid"]
        started.send("a", {"do": "echo", "late": True})
        time.sleep(0.3)  # its answer lies in the queue
        started.restart("a")
        assert not is_running(pids["a"])
        assert is_running(pids["b"])
        body = answer(started, "a")  # neither the old one's answer, nor its end
        assert body["pid"] != pids["a"]
        assert started.exit_code("a") is None
        assert answer(started, "a", {"do": "echo", "n": 2}) == {"n": 2}
        assert answer(started, "b", {"do": "echo", "n": 3}) == {"n": 3}


def test_a_role_that_died_is_restarted() -> None:
    with Roles({"a": role()}) as started:
        answer(started, "a")
        started.send("a", {"do": "die", "code": 3})
        assert started.receive(HANG_S) == ("a", None)
        assert started.exit_code("a") == 3
        started.restart("a")
        assert "pid" in answer(started, "a")
        assert started.exit_code("a") is None


def test_a_failure_names_the_dead_with_the_end_of_their_output() -> None:
    with Roles({n: role(str(n)) for n in range(3)}) as started:
        pids = {}
        for _ in range(3):
            key, body = started.receive(HANG_S)
            assert body is not None
            pids[key] = body["pid"]
        os.kill(pids[1], signal.SIGKILL)
        assert started.receive(HANG_S) == (1, None)
        started.send(2, {"do": "die", "code": 7})
        text = str(started.failure("counting", {0: "rank 2 is gone"}))
    assert text == (
        "counting failed: role 1 was ended by signal 9; "
        "role 2 ended with exit code 7; "
        "role 0: rank 2 is gone; "
        "last output of role 2:\nfirst line\nlast line"
    )


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ({"do": "refuse"}, "size is 3, needs 4"),
        ({"do": "divide", "by": 0}, "ZeroDivisionError: division by zero"),
    ],
)
def test_errors_of_a_worker_are_messages(command: Message, text: str) -> None:
    with Roles({"a": role()}) as started:
        answer(started, "a")
        started.send("a", command)
        with pytest.raises(CommunicationError, match=f"^work failed: role a: {text}$"):
            started.expect("work", HANG_S)


def test_other_lines_are_no_messages_but_kept_for_the_error() -> None:
    with Roles({"a": role()}) as started:
        answer(started, "a")
        for text in ("a line", "[1]"):
            started.send("a", {"do": "print", "text": text})
        assert answer(started, "a", {"do": "echo", "n": 1}) == {"n": 1}
        started.send("a", {"do": "die", "code": 7})
        with pytest.raises(CommunicationError, match=r"(?s)code 7; last output of role a:.*a line"):
            started.expect("work", HANG_S)


def test_messages_are_passed_on_where_a_script_has_redirected_its_output() -> None:
    """They went with it: the parent waited for them."""
    script = (
        "import io, sys; from headrace.launch.worker import run_worker;"
        "sys.stdout = io.StringIO(); run_worker(lambda _, send: send(done=True))"
    )
    with Roles({"a": Role(name="a", argv=[sys.executable, "-c", script])}) as started:
        assert started.expect("work", HANG_S) == ("a", {"done": True})


def test_roles_that_end_without_an_error_are_done() -> None:
    with Roles({n: role(str(n)) for n in range(2)}) as started:
        for _ in range(2):
            expected = started.expect("work", HANG_S)
            assert expected is not None
            started.send(expected[0], {"do": "end"})
        assert started.expect("work", HANG_S) is None
        assert [started.exit_code(n) for n in range(2)] == [0, 0]


def test_roles_that_send_nothing_are_named() -> None:
    with Roles({n: role(str(n)) for n in range(2)}) as started:
        for _ in range(2):
            assert started.expect("work", HANG_S)
        with pytest.raises(CommunicationError, match=r"^work is stuck: .* 0.1 s from role 0, role"):
            started.expect("work", 0.1)


@pytest.mark.parametrize("child", ["have a child", "have a deaf child"])
def test_what_a_role_started_ends_with_it(child: str) -> None:
    with Roles({"a": role()}, grace_s=0.5) as started:
        answer(started, "a")
        first = answer(started, "a", {"do": child})["child"]
        started.send("a", {"do": "die", "code": 0})  # its child holds its standard streams open
        assert started.receive(HANG_S) == ("a", None)
        assert_ends(first)
        started.restart("a")
        answer(started, "a")
        second = answer(started, "a", {"do": child})["child"]
        assert is_running(second)
    assert_ends(second)


@pytest.mark.parametrize("state", ["stopped", "ignoring SIGTERM"])
def test_the_end_comes_within_a_bound(state: str) -> None:
    ignoring = "import os, signal, time; signal.signal(15, signal.SIG_IGN)"
    script = f"{ignoring}; print('{{\"pid\": %d}}' % os.getpid(), flush=True); time.sleep(600)"
    argv = [sys.executable, "-c", script]
    with Roles({"a": Role(name="a", argv=argv)}, grace_s=0.3) as started:
        pid = answer(started, "a")["pid"]
        if state == "stopped":
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
    assert 0.2 < time.monotonic() - began < HANG_S
    assert not is_running(pid)
    assert started.receive(0.0) == ("a", None)
    assert started.exit_code("a") == -signal.SIGKILL


def test_waiting_for_messages_has_a_deadline() -> None:
    with Roles({"a": role()}) as started:
        answer(started, "a")
        began = time.monotonic()
        with pytest.raises(queue.Empty):
            started.receive(0.2)
        assert 0.1 < time.monotonic() - began < HANG_S


def test_a_role_that_does_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "_SEND_S", 0.3)
    with Roles({"a": Role(name="a", argv=["sleep", "600"])}) as started:
        started.send("a", {"text": "x" * 300_000})
        assert started.receive(HANG_S) == ("a", None)
        assert started.exit_code("a") == -signal.SIGKILL
        started.send("a", {"text": "to none"})
    started.send("a", {"text": "to none"})  # whose pipe is closed


def test_one_that_cannot_be_started_ends_the_others() -> None:
    started = Roles({"a": role(), "b": Role(name="b", argv=["/does/not/exist"])})
    with pytest.raises(FileNotFoundError), started:
        pass
    while (received := started.receive(0.0))[1] is not None:
        pass  # it may have begun
    assert received == ("a", None)
    assert started.exit_code("a") == -signal.SIGTERM


def test_a_role_on_a_testbed() -> None:
    spec = TestbedSpec.from_table({"racks": [{"hosts": 2}], "defaults": {"host_rate": "1gbit"}})
    with Testbed.up(spec, fallback=True) as testbed:
        argv = [sys.executable, "-c", "import os; print(os.environ['HEADRACE_TESTBED_HOST'])"]
        hosts = {h.name: partial(testbed.popen, h.name) for h in testbed.hosts}
        with Roles({n: Role(name=n, argv=argv, start=start) for n, start in hosts.items()}) as both:
            lines = [both.receive_line(HANG_S) for _ in range(4)]
    assert {line for line in lines if line[1]} == {(name, name) for name in hosts}


PARENT = """
import os, sys, time
from tests.launch.test_roles import answer, role
from headrace.launch.roles import Roles

with Roles({n: role(str(n)) for n in range(2)}) as started:
    for _ in range(2):
        print(started.receive(60.0)[1]["pid"], flush=True)
    started.send(1, {"do": "compute"})
    print(answer(started, 0, {"do": "have a child"})["child"], flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_its_parent(sent: signal.Signals) -> None:
    """By its own insight if the parent was killed; by the parent's hand after Ctrl-C."""
    parent = start_local([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout as lines:
        first, second, child = (int(lines.readline()) for _ in range(3))
        assert all(map(is_running, (first, second, child)))
        parent.send_signal(sent)
        parent.wait(HANG_S)
        if sent is signal.SIGINT:
            assert not any(map(is_running, (first, second, child)))
        for pid in (first, second, child):
            assert_ends(pid)


def test_a_child_ends_no_process_of_its_parent() -> None:
    """One that left the block, as `sys.exit` does, ended the processes of all roles."""
    with Roles({"a": role()}) as started:
        pid = answer(started, "a")["pid"]
        assert status_of_child(started.end) == 0
        assert is_running(pid)
        assert answer(started, "a", {"do": "echo", "n": 1}) == {"n": 1}
