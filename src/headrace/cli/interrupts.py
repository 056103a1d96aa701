"""Ctrl-C as a request to end with what is complete."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def interrupts() -> Generator[Callable[[], bool]]:
    """Give a function that returns whether Ctrl-C was pressed; the second one ends the command.

    Where SIGINT is ignored it stays so: Ctrl-C is for other processes than one in the background.
    """
    struck = threading.Event()

    def strike(_number: int, _frame: object) -> None:
        if struck.is_set():
            raise KeyboardInterrupt
        struck.set()

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, strike)
    try:
        yield struck.is_set
    finally:
        signal.signal(signal.SIGINT, before)
