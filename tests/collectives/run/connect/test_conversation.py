"""One connection's handshake: what is written to a peer that may be gone."""

import os
import signal
import socket
from collections.abc import Callable

import pytest

from headrace.collectives.run.connect.conversation import Conversation


@pytest.mark.parametrize("write", [lambda talk: talk.send(b"x"), Conversation.send_memory])
def test_a_peer_that_is_gone_raises_an_error_and_no_signal(
    write: Callable[[Conversation], None],
) -> None:
    # SIGPIPE ends a process whose program has not Python's default of ignoring it
    caught: list[int] = []
    before = signal.signal(signal.SIGPIPE, lambda number, _: caught.append(number))
    ours, theirs = socket.socketpair()
    talk = Conversation(ours, os.memfd_create("test"))
    try:
        theirs.close()
        with pytest.raises(BrokenPipeError):
            write(talk)
    finally:
        talk.close()
        signal.signal(signal.SIGPIPE, before)
    assert caught == []
