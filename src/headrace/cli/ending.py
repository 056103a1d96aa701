"""Clean-up on SIGTERM: of a command's testbed, processes, or a file that is not complete."""

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def unwound_by_sigterm() -> Generator[None]:
    """Let SIGTERM raise SystemExit in the block, so that a command cleans up on the way out."""
    before = signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: of other code than Python's


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
