"""Helpers of the tests of connecting: ranks as threads, and inspection of their links."""

import contextlib
import gc
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from headrace.executor.connect import accepting, dialling
from headrace.executor.connect.handshake import (
    CHALLENGE_BYTES,
    CONTROL_CHANNEL,
    WELCOME_BYTES,
    Dialler,
    LocalDialler,
    Purpose,
    group_addresses,
)
from headrace.executor.connect.handshake_loop import Loop
from headrace.executor.connect.listener import Listener, PeerConnection
from tests.waiting import ENDLESS_S, HANG_S

SECRET = b"00112233445566778899aabbccddeeff"
MEMORY_BYTES = 8192
CHANNELS = 2

Outcome = list[PeerConnection] | BaseException


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def listener(rank: int, ranks: int, host: str = "127.0.0.1", **changes: Any) -> Listener:
    parameters: dict[str, Any] = {
        "secret": SECRET,
        "channels": CHANNELS,
        "memory_bytes": MEMORY_BYTES,
        **changes,
    }
    return Listener(rank, ranks, host, **parameters)


def together(
    listeners: Sequence[Listener],
    deadline_s: float = ENDLESS_S,
    delays_s: Sequence[float] = (),
    addresses: Sequence[str] = (),
) -> list[Outcome]:
    """Connect all at once, each after its delay: the links or what was raised, by rank."""
    addresses = addresses or [one.address for one in listeners]
    delays_s = delays_s or [0.0] * len(listeners)

    def act(one: Listener, delay_s: float) -> Outcome:
        time.sleep(delay_s)
        try:
            return one.connect(addresses, deadline_s)
        except Exception as error:  # handed to the test
            return error

    with ThreadPoolExecutor(len(listeners)) as pool:
        return list(pool.map(act, listeners, delays_s))


def close(outcomes: Sequence[Outcome]) -> None:
    for links in outcomes:
        for link in links if isinstance(links, list) else ():
            os.close(link.fd)
            if link.memory_fd >= 0:
                os.close(link.memory_fd)


def kind(link: PeerConnection) -> socket.AddressFamily:
    with socket.socket(fileno=os.dup(link.fd)) as sock:
        return sock.family


def check(outcomes: Sequence[Outcome], local: Callable[[int, int], bool]) -> None:
    """Every pair is connected, by what it should be: a socket for each channel, or memory for all
    with one socket. Bytes go both ways.
    """
    links: dict[tuple[int, int, int], PeerConnection] = {}
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, list), outcome
        links.update({(rank, link.peer, link.channel): link for link in outcome})
        others = [peer for peer in range(len(outcomes)) if peer != rank]
        assert [(link.peer, link.channel) for link in outcome] == [
            (peer, channel)
            for peer in others
            for channel in range(
                CONTROL_CHANNEL, CONTROL_CHANNEL + 1 if local(rank, peer) else CHANNELS
            )
        ]
    for (rank, peer, channel), link in links.items():
        assert not os.get_blocking(link.fd)
        assert not os.get_inheritable(link.fd)
        assert (kind(link) == socket.AF_UNIX) == local(rank, peer)
        assert (link.memory_fd >= 0) == local(rank, peer)
        os.write(link.fd, b"%d to %d on %d" % (rank, peer, channel))
        if link.memory_fd >= 0:
            assert not os.get_inheritable(link.memory_fd)
            with mmap.mmap(link.memory_fd, MEMORY_BYTES) as memory:
                memory[rank] = 1
    for (rank, peer, channel), link in links.items():
        os.set_blocking(link.fd, True)
        assert os.read(link.fd, 1000) == b"%d to %d on %d" % (peer, rank, channel)
        if link.memory_fd >= 0:
            with mmap.mmap(link.memory_fd, MEMORY_BYTES) as memory:
                touched = {at: value for at, value in enumerate(memory[:]) if value}
                assert touched == dict.fromkeys((rank, peer), 1)


def all_pairs(rank: int, peer: int) -> bool:
    return True


def no_pairs(rank: int, peer: int) -> bool:
    return False


@pytest.fixture
def no_descriptor_is_left() -> Iterator[None]:
    gc.collect()  # what earlier tests left behind must not go while this one runs
    before = descriptors()
    yield
    assert descriptors() == before


@contextlib.contextmanager
def patience(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    """Make the time that a handshake may take shorter."""
    with monkeypatch.context() as patched:
        for module in (accepting, dialling):
            patched.setattr(module, "HANDSHAKE_S", seconds)
        yield


class Intruders:
    """Sockets of unauthenticated peers; closed at the end."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    def dial(self, address: str) -> socket.socket:
        self.sockets.append(dialled(address))
        return self.sockets[-1]

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


def dialled(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), HANG_S)


class _Over(Exception):  # noqa: N818
    """Ends a connect without peers."""


@contextlib.contextmanager
def listening_in_vain() -> Iterator[str]:
    """Address of rank 0 of 6, in its connect without peers while the block runs."""
    lonely = listener(0, 6)
    over = threading.Event()

    turn = Loop.turn

    def interrupted(loop: Loop, longest_s: float) -> None:
        if over.is_set():
            raise _Over
        turn(loop, longest_s)

    def wait() -> None:
        with pytest.raises(_Over):
            lonely.connect([lonely.address] * 6, ENDLESS_S)

    with ThreadPoolExecutor(1) as pool, mock.patch.object(Loop, "turn", interrupted):
        waiting = pool.submit(wait)
        try:
            yield lonely.address
        finally:
            over.set()
        waiting.result()


def handshake(sock: socket.socket, purpose: Purpose) -> bytes:
    """Do the dialler's part, with the secret: returns the welcome, or b"" if hung up on."""
    sock.settimeout(HANG_S)
    dialler = Dialler(SECRET, purpose)
    sock.sendall(dialler.hello)
    sock.sendall(dialler.prove(sock.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)))
    return _welcome(sock)


def local_handshake(
    sock: socket.socket, purpose: Purpose, addresses: Sequence[str], fds: Sequence[int]
) -> bytes:
    """Do the dialler's part inside a host, like `handshake`, with the descriptors `fds`."""
    sock.settimeout(HANG_S)
    hello = LocalDialler(SECRET, purpose, group_addresses(addresses)).hello
    with contextlib.suppress(BrokenPipeError):
        socket.send_fds(sock, [hello], list(fds))
    return _welcome(sock)


def _welcome(sock: socket.socket) -> bytes:
    with contextlib.suppress(ConnectionResetError):
        return sock.recv(WELCOME_BYTES, socket.MSG_WAITALL)
    return b""
