"""Signs of life: of processes that compute, are stopped, end, or have no secret."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

import pytest

from headrace import _native
from headrace.embeddings.run.rpc.pulses import PULSES, PulseListener, Silences, send_pulses
from headrace.errors import CommunicationError
from tests.waiting import ENDLESS_S, HANG_S, STALL_S, wait_until, with_longer_deadlines

SECRET = "of the test"

PEER = """
import ctypes, sys
from headrace.embeddings.run.rpc.pulses import send_pulses

pulse = send_pulses(sys.argv[1], "server 0", sys.argv[2], float(sys.argv[3]))
print("begun", flush=True)
for seconds in sys.stdin:
    ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6))  # it keeps the interpreter's lock
    print("computed", flush=True)
"""


def test_the_silent_are_those_without_a_sign_for_the_limit() -> None:
    silences = Silences[str](6.0)
    assert silences.interval_s == 1.0
    silences.refresh("a")
    assert [silences.elapse(1.0) for _ in range(3)] == [[], [], []]
    silences.refresh("b")
    assert [silences.elapse(1.0) for _ in range(2)] == [[], []]
    assert silences.elapse(1.0) == ["a"]
    assert silences.elapse(0.5) == []
    silences.forget("b")
    assert silences.elapse(9.0) == []


def test_those_that_fall_silent_together_are_returned_together() -> None:
    silences = Silences[str](6.0)
    silences.refresh("a")
    silences.elapse(1.0)
    silences.refresh("b")
    for _ in range(4):
        silences.refresh("c")
        assert silences.elapse(1.0) == []
    assert silences.elapse(1.0) == ["a", "b"]


def test_a_watcher_that_stood_still_takes_no_other_for_silent() -> None:
    silences = Silences[str](6.0)
    silences.refresh("a")
    assert silences.elapse(3600.0) == []
    assert silences.elapse(3600.0) == []
    assert silences.elapse(3600.0) == ["a"]


class Listening:
    """A listener, and what it tells."""

    def __init__(self, limit_s: float, ends: ExitStack) -> None:
        self.limit_s = limit_s
        self.silent: list[str] = []
        self.heard: list[str] = []
        self.ended: list[str] = []
        self.listener = PulseListener(
            "127.0.0.1", SECRET, limit_s, self.on_silence, self.ended.append
        )
        ends.callback(self.listener.close)

    def on_silence(self, silent: Sequence[str], heard: Sequence[str]) -> None:
        self.silent += silent
        self.heard = [*heard]


def check_a_stopped_process_is_told_and_one_that_computes_is_not(limit_s: float) -> None:
    with ExitStack() as ends:
        listening = Listening(limit_s, ends)
        interval_s = limit_s / PULSES
        own = send_pulses(listening.listener.address, "reader 0", SECRET, interval_s)
        ends.callback(own.close)
        peer = ends.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", PEER, listening.listener.address, SECRET, str(interval_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        ends.callback(peer.kill)
        assert peer.stdin is not None
        assert peer.stdout is not None
        assert peer.stdout.readline() == "begun\n"
        peer.stdin.write(f"{2 * limit_s}\n")
        peer.stdin.flush()
        assert peer.stdout.readline() == "computed\n"
        assert listening.silent == []
        peer.send_signal(signal.SIGSTOP)
        wait_until(lambda: listening.silent, "the process is silent")
        assert (listening.silent, listening.heard) == (["server 0"], ["reader 0"])
        assert listening.ended == []


def test_a_stopped_process_is_told_and_one_that_computes_is_not() -> None:
    with_longer_deadlines(check_a_stopped_process_is_told_and_one_that_computes_is_not)


def test_the_end_of_a_process_is_told_and_strangers_are_not_heard() -> None:
    with ExitStack() as ends:
        listening = Listening(HANG_S, ends)
        own = send_pulses(listening.listener.address, "trainer 0", SECRET, 0.01)
        port = int(listening.listener.address.rpartition(":")[2])
        for greeting in (
            b'{"role": "trainer 0", "secret": "no"}\n',
            b'{"role": "trainer 0", "secret": "\\ud800"}\n',
            b"[" * 3000 + b"\n",
            b"[]\n",
            b"x" * 5000,
        ):
            with socket.create_connection(("127.0.0.1", port), HANG_S) as stranger:
                stranger.sendall(greeting)
                assert stranger.recv(1) == b""
        assert listening.ended == []
        own.close()
        wait_until(lambda: listening.ended == ["trainer 0"], "its end is told")
        assert listening.silent == []


def test_a_process_that_can_send_no_pulses_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer ended in "RuntimeError: pulse: Resource temporarily unavailable"."""

    def refused(*_: object) -> NoReturn:
        raise RuntimeError("pulse: the system refuses a thread")

    monkeypatch.setattr(_native, "Pulse", refused)
    with ExitStack() as ends:
        listening = Listening(HANG_S, ends)
        with pytest.raises(
            CommunicationError, match="^trainer 0 cannot send pulses: pulse: the sy"
        ):
            send_pulses(listening.listener.address, "trainer 0", SECRET, HANG_S)


def check_a_role_is_that_of_its_newest_process(limit_s: float) -> None:
    with ExitStack() as ends:
        listening = Listening(limit_s, ends)
        former = send_pulses(listening.listener.address, "reader 0", SECRET, HANG_S)
        ends.callback(former.close)
        newer = send_pulses(listening.listener.address, "reader 0", SECRET, limit_s / PULSES)
        ends.callback(newer.close)
        other = send_pulses(listening.listener.address, "reader 1", SECRET, HANG_S)
        ends.callback(other.close)
        wait_until(lambda: listening.silent, "the one that sends none is silent")
        assert (listening.silent, listening.heard) == (["reader 1"], ["reader 0"])
        assert listening.ended == []


def test_a_role_is_that_of_its_newest_process() -> None:
    """One that has been replaced is no news, silent or not."""
    with_longer_deadlines(check_a_role_is_that_of_its_newest_process)


def check_a_stranger_shortens_no_silence(limit_s: float) -> None:
    with ExitStack() as ends:
        listening = Listening(limit_s, ends)
        address = ("127.0.0.1", int(listening.listener.address.rpartition(":")[2]))
        stranger = ends.enter_context(socket.create_connection(address, HANG_S))
        time.sleep(1.5 * limit_s / PULSES)
        began = time.monotonic()
        own = send_pulses(listening.listener.address, "reader 0", SECRET, HANG_S)
        ends.callback(own.close)
        assert stranger.recv(1) == b"", "it is removed"
        assert listening.silent == []
        wait_until(lambda: listening.silent, "the one that sends none is silent")
        assert time.monotonic() - began > (PULSES - 1) * limit_s / PULSES


def test_a_stranger_shortens_no_silence() -> None:
    """Those that fall silent with it were told: 4 s after their last pulse, and not 6."""
    with_longer_deadlines(check_a_stranger_shortens_no_silence)


def refusing(times: float) -> tuple[list[None], Any]:
    """Return refusals so far, and a function in place of accept that refuses so often."""
    refusals: list[None] = []

    def accept(self: socket.socket, accepted: Any = socket.socket.accept) -> Any:
        if len(refusals) >= times:
            return accepted(self)
        refusals.append(None)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    return refusals, accept


def test_a_listener_without_descriptors_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tried to accept again and again, at full speed, as long as none was free."""
    with ExitStack() as ends:
        listening = Listening(ENDLESS_S, ends)
        own = send_pulses(listening.listener.address, "trainer 0", SECRET, HANG_S)
        ends.callback(own.close)
        connections = listening.listener._connections  # pyright: ignore[reportPrivateUsage]
        wait_until(lambda: connections, "it is accepted")
        refusals, accept = refusing(float("inf"))
        monkeypatch.setattr(socket.socket, "accept", accept)
        address = ("127.0.0.1", int(listening.listener.address.rpartition(":")[2]))
        ends.enter_context(socket.create_connection(address, HANG_S))
        wait_until(lambda: refusals, "a connection is refused")
        own.close()
        wait_until(lambda: listening.ended == ["trainer 0"], "others are served")
        assert len(refusals) == 1


def test_a_listener_accepts_again_when_descriptors_are_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals, accept = refusing(1)
    with ExitStack() as ends:
        listening = Listening(STALL_S / 3, ends)
        monkeypatch.setattr(socket.socket, "accept", accept)
        send_pulses(listening.listener.address, "trainer 0", SECRET, HANG_S).close()
        wait_until(lambda: listening.ended == ["trainer 0"], "it is accepted")
        assert len(refusals) == 1
