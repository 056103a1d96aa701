"""Waits of tests whose verdict is the same on an idle and on a busy machine.

A test that something ends, happens or does not hang waits for it up to `HANG_S`, and gives the code
under test minutes to wait where it should not wait: other work on the machine delays an event by
seconds, a hang never ends. A test of a deadline that passes gives it `STALL_S`, in which all else
that the test expects has to happen, or tries longer ones while it fails (`with_longer_deadlines`).
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress

HANG_S = 60.0
"""Seconds after which a wait counts as a hang."""

JOB_S = 600.0
"""Seconds after which a process of a test counts as hung: many times what the longest takes, and
less than pytest gives a test (pyproject.toml)."""

ENDLESS_S = 3600.0
"""Seconds that a hang would take: a deadline which no test may reach."""

STALL_S = 3.0
"""Seconds of a deadline that is to pass; longer than a busy machine keeps a thread from running."""


_LONGER_S = (STALL_S / 3, 2 * STALL_S, 10 * STALL_S)


def with_longer_deadlines(
    check: Callable[[float], None], deadlines_s: Sequence[float] = _LONGER_S
) -> None:
    """Check with a short deadline that is to pass, and with longer ones while that fails.

    Where a busy machine does not get to everything else before a deadline, it does before one that
    is thirty times as long; wrong code fails with each.

    Parameters
    ----------
    deadlines_s : rising; fewer where a check takes long.
    """
    for deadline_s in deadlines_s[:-1]:
        with suppress(AssertionError):
            return check(deadline_s)
    return check(deadlines_s[-1])


def wait_until(holds: Callable[[], object], what: str | Callable[[], object]) -> None:
    """Wait for a condition; AssertionError with `what` if it takes as long as a hang."""
    end = time.monotonic() + HANG_S
    while not holds():
        text = what if isinstance(what, str) else what()
        assert time.monotonic() < end, f"waited {HANG_S:g} s: {text}"
        time.sleep(0.005)


@contextmanager
def no_hang() -> Generator[None]:
    """AssertionError if the block takes as long as a hang."""
    began = time.monotonic()
    yield
    elapsed_s = time.monotonic() - began
    assert elapsed_s < HANG_S, f"took {elapsed_s:.1f} s"
