"""Encrypted traffic between hosts can neither be read nor changed on its way."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from headrace import _native
from headrace.errors import CommunicationError, InputError
from headrace.executor import Executor
from tests.conformance.groups import each
from tests.conformance.launch import outputs, ranks
from tests.waiting import ENDLESS_S, STALL_S

HOSTS = ("127.0.0.1", "127.0.0.2")
JOB = Path(__file__).with_name("tls_job.py")
PLAIN = b"the weights of a model that nobody else is to have; " * 400

needs_tls = pytest.mark.skipif(not _native.has_tls(), reason="built without OpenSSL")

Change = Callable[[bytes, int], bytes]


class Tap:
    """Stands before `address`, and hands on what comes: `change` sees data and offset first."""

    def __init__(self, address: str, change: Change | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._change = change or (lambda data, _offset: data)
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self.seen: list[bytearray] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target, 5)
            far.settimeout(None)
            for one, other in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._forward, args=(one, other)))
                self._threads[-1].start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        seen = bytearray()
        self.seen.append(seen)
        try:
            while data := one.recv(1 << 16):
                other.sendall(self._change(data, len(seen)))
                seen += data
        except OSError:
            pass
        finally:
            for end in (one, other):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def close(self) -> None:
        """Once all that went through it is closed."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@contextmanager
def tapped(
    *, tls: bool, change: Change | None = None, deadline_s: float = ENDLESS_S
) -> Iterator[tuple[list[Executor], Tap]]:
    """Two ranks on two addresses, with a tap between them."""
    pair = [Executor(rank, 2, host=HOSTS[rank], secret="tap", tls=tls) for rank in range(2)]
    tap = Tap(pair[0].address, change)
    addresses = [tap.address, pair[1].address]
    try:
        each(pair, lambda executor: executor.connect(addresses, deadline_s))
        yield pair, tap
    finally:
        for executor in pair:
            executor.close()
        tap.close()


def send(pair: list[Executor], deadline_s: float = ENDLESS_S) -> bytes:
    """Send PLAIN to rank 1; returns the bytes received there."""
    out, came = np.frombuffer(PLAIN, np.uint8), np.zeros(len(PLAIN), np.uint8)
    sent = pair[0].send(out.ctypes.data, out.size, 1, 5, deadline_s=deadline_s)
    received = pair[1].recv(came.ctypes.data, came.size, 0, 5, deadline_s=deadline_s)
    pair[1].wait(received)
    pair[0].wait(sent)
    return came.tobytes()


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=needs_tls)])
def test_a_tap_on_a_connection_reads_nothing(tls: bool) -> None:
    with tapped(tls=tls) as (pair, tap):
        assert send(pair) == PLAIN
    seen = [PLAIN[:50] in one for one in tap.seen]
    assert sum(len(one) for one in tap.seen) > len(PLAIN)
    assert any(seen) != tls


@needs_tls
def test_what_was_changed_on_its_way_is_an_error() -> None:
    def change(data: bytes, offset: int) -> bytes:
        place = 15_000 - offset  # beyond handshakes, within the message
        if not 0 <= place < len(data):
            return data
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    with (
        tapped(tls=True, change=change) as (pair, _),
        pytest.raises(CommunicationError, match=r"TLS with rank 0 failed .*bad record mac"),
    ):
        send(pair)
    with tapped(tls=False, change=change) as (pair, _):
        assert send(pair) != PLAIN  # so TLS is needed for this


@needs_tls
def test_a_connection_that_is_held_up_in_its_handshake_is_an_error_in_time() -> None:
    def change(data: bytes, offset: int) -> bytes:
        return b"" if offset >= 170 else data  # the four messages before TLS are short

    with (
        pytest.raises(CommunicationError, match="in time: the handshake with rank 1 did not end"),
        tapped(tls=True, change=change, deadline_s=STALL_S),
    ):
        pass


def test_a_build_without_tls_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "has_tls", lambda: False)
    with pytest.raises(InputError, match="libssl-dev"):
        Executor(0, 1, secret="alone", tls=True)


@needs_tls
def test_a_job_over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TLS", "on")
    monkeypatch.setenv("HEADRACE_SHARED_MEMORY", "off")
    with ranks(2, JOB) as processes:
        texts = outputs(processes)
    assert [text.splitlines()[-1] for text in texts] == ["done", "done"], texts
