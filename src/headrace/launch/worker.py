"""The side of a started process: messages from its parent, and to it, on standard streams."""

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from headrace.errors import CommunicationError, HeadraceError

Receive = Callable[[], dict[str, Any]]
"""Waits for the parent's next message; raises CommunicationError when the parent is gone."""

Send = Callable[..., None]
"""Sends the parent a message of its keyword arguments."""

MARK = "\x1e"
"""Begins the messages of a process that prints other texts, too: JSON among them is none."""

_INTERRUPTED = 130
_GRACE_S = 2.0


def run_worker(work: Callable[[Receive, Send], None], *, beside_prints: bool = False) -> None:
    """Run `work` as a process of a role, with its functions to receive and to send messages.

    Every exception is sent to the parent as a message "error". When the parent is gone, the
    process ends with all that it started: by the error of the next call of either function, or 2 s
    later.

    Parameters
    ----------
    beside_prints : whether the process prints texts of a user's, too, which need not end their
        line, and may be JSON: each message then begins a line, by `MARK`.
    """
    begin = f"\n{MARK}" if beside_prints else ""
    stdout = sys.__stdout__  # a user's script may have put another in the place of sys.stdout
    assert stdout is not None
    received: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(received,), daemon=True).start()

    def receive() -> dict[str, Any]:
        message = received.get()
        if message is None:
            raise CommunicationError("the process that started this one is gone")
        return message

    def send(**message: Any) -> None:
        stdout.write(f"{begin}{json.dumps(message)}\n")
        stdout.flush()

    try:
        try:
            work(receive, send)
        except HeadraceError as error:
            send(error=str(error))
        except Exception as error:  # of any kind: the parent must not wait for a message in vain
            send(error=f"{type(error).__name__}: {error}")
    except (BrokenPipeError, KeyboardInterrupt):  # the parent reads no more
        _leave()


def _read(received: "queue.SimpleQueue[dict[str, Any] | None]") -> None:
    # not by sys.stdin, whose lock a thread that waits would hold when the interpreter ends
    partial = b""
    while data := os.read(0, 1 << 16):
        *lines, partial = (partial + data).split(b"\n")
        for line in lines:
            received.put(json.loads(line))
    received.put(None)
    time.sleep(_GRACE_S)
    _leave()


def _leave() -> NoReturn:
    """End this process, and what it started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(_INTERRUPTED)
