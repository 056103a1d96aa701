"""Clean-up on SIGTERM: of a command's testbed, processes, or a file that is not complete."""

import signal
import sys
from types import FrameType
from typing import NoReturn


def unwind_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit, so that a command cleans up on the way out."""
    signal.signal(signal.SIGTERM, _exit_on_signal)


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
