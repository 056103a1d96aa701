"""Transport between a pair of ranks, with late ranks and foreign processes on local names."""

import contextlib
import errno
import itertools
import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from headrace.executor.connect import dialling
from headrace.executor.connect.handshake import (
    CHALLENGE_BYTES,
    local_name,
)
from headrace.executor.connect.handshake_loop import Handshake
from tests.executor.connect.connecting import (
    SECRET,
    Intruders,
    all_pairs,
    check,
    close,
    listener,
    no_descriptor_is_left,  # noqa: F401 - a fixture
    no_pairs,
    patience,
    together,
)

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


def test_ranks_that_come_late_are_waited_for_and_share_memory_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with patience(monkeypatch, 0.2):
        outcomes = together([listener(r, 4) for r in range(4)], delays_s=[0.7, 0, 0.35, 0])
    check(outcomes, all_pairs)
    close(outcomes)


def test_without_memory_all_channels_go_by_tcp(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(nbytes: int) -> int:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(dialling, "make_memory", none_left)
    with caplog.at_level(logging.WARNING):
        outcomes = together([listener(r, 2) for r in range(2)])
    check(outcomes, no_pairs)
    assert "no memory to share with rank 0 (Cannot allocate memory)" in caplog.text
    close(outcomes)


def test_ranks_share_memory_though_too_many_descriptors_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of more than 45 ranks are: where 1,024 files may be open, some pairs had TCP."""
    send, attempts = Handshake.send_memory, itertools.count()

    def crowded(handshake: Handshake, message: bytes) -> None:
        if next(attempts) < 20:
            raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")
        send(handshake, message)

    monkeypatch.setattr(Handshake, "send_memory", crowded)
    outcomes = together([listener(r, 4) for r in range(4)])
    check(outcomes, all_pairs)
    close(outcomes)


@contextlib.contextmanager
def squatter(name: bytes, answer: bytes | None) -> Iterator[None]:
    """Take a local name, and answer all that connect; b"" hangs up, None keeps silent."""
    intruders = Intruders()
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(name)
        taken.listen(100)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = taken.accept()
                    intruders.sockets.append(sock)
                    if answer:
                        with contextlib.suppress(BrokenPipeError):
                            sock.sendall(answer)
                    elif answer is not None:
                        sock.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        taken.shutdown(socket.SHUT_RDWR)
        thread.join()
    intruders.close()


@pytest.mark.parametrize("answer", [None, b"", b"x" * 10, b"x" * CHALLENGE_BYTES, b"x" * 5000])
def test_a_foreign_process_with_the_local_name_is_passed_by(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = [listener(r, 3, shared_memory=r != 0) for r in range(3)]
    name = local_name(SECRET, group[0].address)
    with squatter(name, answer), patience(monkeypatch, 0.3):
        outcomes = together(group)
    check(outcomes, lambda rank, peer: 0 not in (rank, peer))
    close(outcomes)


def test_a_local_name_that_is_taken_already_leaves_tcp(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(b"\0headrace test")
        monkeypatch.setattr(
            "headrace.executor.connect.listener.local_name", lambda *_: b"\0headrace test"
        )
        group = [listener(r, 2) for r in range(2)]
    assert "TCP to all ranks" in caplog.text
    outcomes = together(group)
    check(outcomes, no_pairs)
    close(outcomes)
