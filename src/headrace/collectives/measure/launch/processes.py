"""Ranks as child processes that exchange lines of JSON with their parent.

A rank imports neither torch nor a launcher, so it starts in a fraction of a second.
"""

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Self, TextIO

from headrace.errors import HeadraceError

Message = dict[str, Any]

_GRACE_S = 2.0


class Processes:
    """Child processes and their messages. As a context manager it ends them all.

    Parameters
    ----------
    start : starts the process of a rank, with the given options of `subprocess.Popen`.
    count : of processes.
    """

    def __init__(self, start: "Callable[..., subprocess.Popen[str]]", count: int) -> None:
        self._start = start
        self._count = count
        self._processes: list[subprocess.Popen[str]] = []
        self._received: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        try:
            for rank in range(self._count):
                process = self._start(
                    rank,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for this process, which ends the others
                )
                self._processes.append(process)
                threading.Thread(target=self._listen, args=(rank, process), daemon=True).start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + _GRACE_S
        for process in self._processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()

    def send(self, ranks: Iterable[int], messages: Iterable[Message]) -> None:
        """Send the processes of `ranks` a message each."""
        for rank, message in zip(ranks, messages, strict=True):
            process = self._processes[rank]
            assert process.stdin is not None
            with suppress(OSError):  # `receive` reports one that ended
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()

    def receive(self, timeout_s: float) -> tuple[int, Message | None]:
        """Wait for a message of any process; None is its end.

        Raises
        ------
        queue.Empty : if there is none in time.
        """
        rank, line = self._received.get(timeout=timeout_s)
        return rank, None if line is None else _parsed(line)

    def exit_code(self, rank: int) -> int:
        """Wait for a process whose output has ended; return its exit code (-n: signal n)."""
        return self._processes[rank].wait()

    def _listen(self, rank: int, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._received.put((rank, line))
        self._received.put((rank, None))


def run_worker(
    lines: TextIO, out: TextIO, work: Callable[[TextIO, Callable[..., None]], None]
) -> None:
    """Run `work` in a child process, with messages from `lines` and a function that sends some.

    Every exception is sent to the parent as a message ``error``.
    """

    def send(**message: Any) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        work(lines, send)
    except HeadraceError as error:
        send(error=str(error))
    except Exception as error:  # of any kind: the parent must not wait for a message in vain
        send(error=f"{type(error).__name__}: {error}")


def exit_text(code: int) -> str:
    """Return the end of a process as text."""
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _parsed(line: str) -> Message:
    try:
        message = json.loads(line)
    except ValueError:
        return {"error": f"unexpected output: {line.strip()[:200]}"}
    return message if isinstance(message, dict) else {"error": f"unexpected output: {line.strip()}"}
