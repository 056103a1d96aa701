"""Unauthenticated peers of all sorts dial a connecting group, and change nothing."""

import contextlib
import os
import random
import resource
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.errors import CommunicationError
from headrace.executor.connect import accepting
from headrace.executor.connect.handshake import (
    CHALLENGE_BYTES,
    CONTROL_CHANNEL,
    HELLO_BYTES,
    PROOF_BYTES,
    WELCOME_BYTES,
    Dialler,
    Purpose,
    local_name,
)
from headrace.executor.connect.handshake_loop import make_memory
from tests.executor.connect.connecting import (
    CHANNELS,
    MEMORY_BYTES,
    SECRET,
    Intruders,
    Outcome,
    all_pairs,
    check,
    close,
    descriptors,
    dialled,
    handshake,
    listener,
    listening_in_vain,
    local_handshake,
    no_descriptor_is_left,  # noqa: F401 - a fixture
    no_pairs,
    patience,
    together,
)
from tests.waiting import ENDLESS_S, HANG_S, no_hang, wait_until

pytestmark = pytest.mark.usefixtures("no_descriptor_is_left")


def scans_ports(address: str, intruders: Intruders) -> None:
    for _ in range(20):
        dialled(address).close()


def talks(address: str, intruders: Intruders) -> None:
    noise = random.Random(5)
    for _ in range(20):
        sock = intruders.dial(address)
        with contextlib.suppress(OSError):  # hung up on while still talking
            sock.sendall(noise.randbytes(noise.randrange(1, 2000)))
            sock.sendall(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n")


def keeps_silent(address: str, intruders: Intruders) -> None:
    for _ in range(100):
        intruders.dial(address)


def dawdles(address: str, intruders: Intruders) -> None:
    socks = [intruders.dial(address) for _ in range(10)]

    def dawdle() -> None:
        for byte in Dialler(b"a guess", Purpose(6, 5, 0, 0, False)).hello[:20]:
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.send(bytes([byte]), socket.MSG_NOSIGNAL)
            time.sleep(0.05)

    threading.Thread(target=dawdle, daemon=True).start()


def guesses(address: str, intruders: Intruders) -> None:
    """Speaks the protocol, without the secret."""
    for channel in range(20):
        hello = Dialler(b"a guess", Purpose(6, 5, 0, channel % 4 - 2, False)).hello
        intruders.dial(address).sendall(hello)


def says_hello_only(address: str, intruders: Intruders) -> None:
    """Says hellos that are right, one of them many times, and then nothing."""
    hellos = [Dialler(SECRET, Purpose(6, 5, 0, 0, False)).hello for _ in range(5)]
    for index in range(20):
        intruders.dial(address).sendall(hellos[min(index, 4)])


INTRUDERS = [scans_ports, talks, keeps_silent, dawdles, guesses, says_hello_only]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kinds", [[one] for one in INTRUDERS] + [INTRUDERS])
@pytest.mark.parametrize("shared", [True, False])
def test_unauthenticated_peers_change_nothing(
    kinds: list[Callable[[str, Intruders], None]], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "MAX_HANDSHAKES", 40)  # fewer than intruders
    group = [listener(r, 6, shared_memory=shared) for r in range(6)]
    intruders = Intruders()

    def trouble() -> None:
        for intrude in kinds:
            for rank in (0, 3):
                with contextlib.suppress(OSError):  # a dial after the end is refused
                    intrude(group[rank].address, intruders)

    trouble()  # some are there before the ranks, some come with them
    with ThreadPoolExecutor(1) as pool:
        more = pool.submit(trouble)
        with no_hang():
            outcomes = together(group, delays_s=[0, 0, 0, 0, 0.1, 0.3])
        more.result()
    check(outcomes, all_pairs if shared else no_pairs)
    intruders.close()
    close(outcomes)


def test_unauthenticated_peers_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    intruders = Intruders()
    with patience(monkeypatch, 0.3), listening_in_vain() as address, no_hang():
        for intrude in (keeps_silent, talks, guesses, says_hello_only):
            intrude(address, intruders)
        for sock in intruders.sockets:
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(1000):  # challenges, perhaps
                    pass
    intruders.close()


def test_a_peer_with_a_right_hello_is_not_dropped_for_silent_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "MAX_HANDSHAKES", 20)
    intruders = Intruders()
    with listening_in_vain() as address:
        sock = intruders.dial(address)
        dialler = Dialler(SECRET, Purpose(6, 3, 0, 0, False))
        sock.sendall(dialler.hello)
        challenge = sock.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)
        keeps_silent(address, intruders)
        intruders.sockets[1].recv(1)  # the first of them was dropped
        sock.sendall(dialler.prove(challenge))
        dialler.finish(sock.recv(WELCOME_BYTES, socket.MSG_WAITALL))
    intruders.close()


def test_when_all_places_are_taken_by_ranks_that_died_the_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "MAX_HANDSHAKES", 16)
    group = [listener(r, 3) for r in range(3)]
    intruders = Intruders()
    for _ in range(40):
        hello = Dialler(SECRET, Purpose(3, 1, 0, 0, False)).hello
        intruders.dial(group[0].address).sendall(hello)
    with patience(monkeypatch, 0.2):
        outcomes = together(group)
    check(outcomes, all_pairs)
    intruders.close()
    close(outcomes)


def test_a_channel_that_is_taken_stays_with_its_peer() -> None:
    purpose = Purpose(6, 3, 0, 1, False)
    intruders = Intruders()
    with listening_in_vain() as address:
        first, second, third = [intruders.dial(address) for _ in range(3)]
        assert len(handshake(first, purpose)) == WELCOME_BYTES
        assert handshake(second, purpose) == b""
        assert len(handshake(third, purpose._replace(channel=0))) == WELCOME_BYTES
        first.settimeout(0.1)
        with pytest.raises(TimeoutError):
            first.recv(1)
    intruders.close()


class Relay:
    """Stands between the ranks and one of them, passes on what is said, and takes notes."""

    def __init__(self, target: str) -> None:
        self.heard: list[bytes] = []
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                onward = dialled(self._target)
                note = len(self.heard)
                self.heard.append(b"")
                both = [self._start(self._pass_on, sock, onward, note)]
                both.append(self._start(self._pass_on, onward, sock, -1))
                self._start(self._close, both, sock, onward)

    def _start(self, act: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=act, args=arguments)
        thread.start()
        self._threads.append(thread)
        return thread

    def _pass_on(self, source: socket.socket, sink: socket.socket, note: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1000):
                if note >= 0:
                    self.heard[note] += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def _close(self, both: list[threading.Thread], *socks: socket.socket) -> None:
        for thread in both:
            thread.join()
        for sock in socks:
            sock.close()


def test_what_was_overheard_cannot_be_said_again() -> None:
    """All that rank 1 said to rank 0 is said again, while rank 0 still waits for rank 2."""
    group = [listener(r, 3, shared_memory=False) for r in range(3)]
    relay = Relay(group[0].address)
    addresses = [one.address for one in group]
    with ThreadPoolExecutor(3) as pool:
        futures = [
            pool.submit(group[0].connect, addresses, ENDLESS_S),
            pool.submit(group[1].connect, [relay.address, *addresses[1:]], ENDLESS_S),
        ]
        wait_until(
            lambda: (
                len(relay.heard) >= CHANNELS + 2
                and all(len(words) >= HELLO_BYTES + PROOF_BYTES for words in relay.heard)
            ),
            lambda: relay.heard,
        )
        answers: list[bytes] = []
        for said in list(relay.heard):
            assert said
            with dialled(group[0].address) as sock:
                sock.settimeout(HANG_S)
                sock.sendall(said)
                answer = b""
                with contextlib.suppress(ConnectionResetError):
                    while data := sock.recv(1000):
                        answer += data
                answers.append(answer)
        futures.append(pool.submit(group[2].connect, addresses, ENDLESS_S))
        outcomes: list[Outcome] = [future.result() for future in futures]
    assert answers == [b""] * (CHANNELS + 2)
    check(outcomes, no_pairs)
    close(outcomes)
    relay.close()


def small() -> int:
    return make_memory(MEMORY_BYTES // 2)


def unsealed() -> int:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, MEMORY_BYTES)
    return fd


def no_memory() -> int:
    return os.open("/dev/null", os.O_RDWR)


@pytest.mark.parametrize("offer", [small, unsealed, no_memory, None])
def test_only_sealed_memory_of_the_right_size_is_taken(
    offer: Callable[[], int] | None,
) -> None:
    purpose = Purpose(6, 3, 0, CONTROL_CHANNEL, True)
    offers = [[] if offer is None else [offer()], [make_memory(MEMORY_BYTES)]]
    with listening_in_vain() as address:
        for fds, size in zip(offers, (0, WELCOME_BYTES), strict=True):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(local_name(SECRET, address))
                assert len(local_handshake(sock, purpose, [address] * 6, fds)) == size
            for fd in fds:
                os.close(fd)


@pytest.mark.parametrize("hello", [b"x" * HELLO_BYTES, b"x"])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_descriptors_of_unauthenticated_peers_are_closed(hello: bytes, count: int) -> None:
    memory_fd = make_memory(MEMORY_BYTES)
    with listening_in_vain() as address, socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(HANG_S)
        sock.connect(local_name(SECRET, address))
        socket.send_fds(sock, [hello], [memory_fd] * count)
        with contextlib.suppress(OSError):  # hung up on
            socket.send_fds(sock, [hello], [memory_fd] * count)
            sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    os.close(memory_fd)


def test_running_out_of_descriptors_says_what_to_do() -> None:
    lonely = listener(0, 2)
    intruders = Intruders()
    intruders.dial(lonely.address)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    filling: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 20, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                filling.append(os.dup(intruders.sockets[0].fileno()))
        os.close(filling.pop())  # for the selector
        with pytest.raises(CommunicationError, match=r"Too many open files; .* \(ulimit -n\)"):
            lonely.connect([lonely.address] * 2, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in filling:
            os.close(fd)
        intruders.close()
