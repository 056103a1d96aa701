"""Waits for an end that no other thread reports."""

import time
from collections.abc import Callable

_FIRST_PAUSE_S = 20e-6
_LONGEST_PAUSE_S = 1e-3


def holds_within(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait until `condition` holds, at once if it does; returns whether it did in `limit_s`."""
    end, pause_s = time.monotonic() + limit_s, _FIRST_PAUSE_S
    while not condition():
        left_s = end - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return True
