"""Clean-up of a command's testbed on SIGTERM."""

import signal
import sys
from types import FrameType
from typing import NoReturn


def unwind_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit, so that a testbed goes down on the way out."""
    signal.signal(signal.SIGTERM, _exit_on_signal)


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
