"""One connection's handshake: what is written to a peer that may be gone."""

import os
import signal
import socket
from collections.abc import Callable

import pytest

from headrace.executor.connect.handshake_loop import Handshake


@pytest.mark.parametrize("write", [lambda handshake: handshake.send(b"x"), Handshake.send_memory])
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
