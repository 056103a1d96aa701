"""One connection's handshake: what is written to a peer that may be gone."""

import os
import signal
import socket
from collections.abc import Callable

import pytest

from headrace.executor.connect.handshake import Refused
from headrace.executor.connect.handshake_loop import Handshake, Loop, Steps
from tests.waiting import HANG_S, no_hang

WRITES: list[Callable[[Handshake], None]] = [
    lambda handshake: handshake.send(b"x"),
    lambda handshake: handshake.send_memory(b"x"),
]


@pytest.mark.parametrize("write", WRITES)
def test_a_peer_that_is_gone_raises_an_error_and_no_signal(
    write: Callable[[Handshake], None],
) -> None:
    # SIGPIPE ends a process whose program has not Python's default of ignoring it
    caught: list[int] = []
    before = signal.signal(signal.SIGPIPE, lambda number, _: caught.append(number))
    ours, theirs = socket.socketpair()
    handshake = Handshake(ours, os.memfd_create("test"))
    try:
        theirs.close()
        with pytest.raises(BrokenPipeError):
            write(handshake)
    finally:
        handshake.close()
        signal.signal(signal.SIGPIPE, before)
    assert caught == []


@pytest.mark.parametrize("sent", [True, False])
def test_a_dialler_that_gives_up_is_connected_if_and_only_if_the_welcome_was_sent(
    sent: bool,
) -> None:
    """Else one side would be connected with a peer that has dialled again."""
    loop, outcomes, welcomes = Loop(), list[Exception | None](), list[bytes]()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    handshake = Handshake(ours, expires=0.0)
    handshake.welcomed = True

    def steps() -> Steps:
        welcomes.append((yield from handshake.receive(7)))

    try:
        loop.begin(handshake, steps(), outcomes.append)
        if sent:
            theirs.send(b"welcome")
        handshake.refuse_welcome()
        if not sent:
            with pytest.raises(BrokenPipeError):
                theirs.send(b"welcome", socket.MSG_NOSIGNAL)
        while not outcomes:
            loop.turn(HANG_S)
        assert [type(error) for error in outcomes] == [type(None) if sent else Refused]
        assert welcomes == [b"welcome"] * sent
    finally:
        loop.close()
        handshake.close()
        theirs.close()


def test_a_welcome_that_does_not_come_ends_the_handshake() -> None:
    loop, outcomes = Loop(), list[Exception | None]()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    handshake = Handshake(ours, expires=0.0)
    handshake.welcomed = True

    def steps() -> Steps:
        yield from handshake.receive(7)

    with ours, theirs:
        loop.begin(handshake, steps(), outcomes.append)
        with no_hang():
            while not outcomes:
                loop.turn(0.01)
        assert isinstance(outcomes[0], Refused)
        loop.close()
