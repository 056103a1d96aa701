"""Clean-up on SIGTERM and SIGHUP: of a command's testbed, processes, or an incomplete file."""

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""SIGHUP comes where a terminal is closed, or a connection to it breaks."""


@contextmanager
def unwound_by_signals() -> Generator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit in the block: a command cleans up on the way out.

    Further ones do not cut that short: ``timeout`` and a closed terminal send theirs twice. One
    that is ignored stays so, as SIGHUP under nohup.
    """
    before = {number: signal.getsignal(number) for number in _ENDING}
    heard = [number for number in _ENDING if before[number] is not signal.SIG_IGN]

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        for further in heard:
            signal.signal(further, _pass_over)
        sys.exit(128 + number)

    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number] or signal.SIG_DFL)  # None: not set by Python


def _pass_over(_number: int, _frame: FrameType | None) -> None:
    """Do nothing, unlike SIG_IGN, of which Python warns where the signal has just come."""
