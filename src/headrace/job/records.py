"""Log of adaptation: events and reasons, in memory and optionally as lines of JSON."""

import json
import logging
import time
from collections import deque
from pathlib import Path
from typing import Any

from headrace.facades import offered_by
from headrace.files import without_infinities
from headrace.forks import ForkMark

log = logging.getLogger(__name__)

_KEPT = 1000


@offered_by("headrace.job")
class Records:
    """Events in their order, each a table with at least "event" and "at" (seconds since 1970).

    Parameters
    ----------
    path : file to append to (as of HEADRACE_ADAPT_LOG); None: none. If it cannot be written to, a
        warning is logged, and no more is written: training goes on. A forked child writes nothing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._mark = ForkMark()
        self.events: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def add(self, event: str, **facts: Any) -> None:
        """Record `event`; what is not a number, text or table of these is written as text.

        Of a number that JSON does not have, such as NaN, the file has null.
        """
        row = {"event": event, "at": round(time.time(), 3), **facts}
        self.events.append(row)
        if self._path is None or self._mark.forked:
            return
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(without_infinities(row), default=str) + "\n")
        except OSError as error:
            log.warning("log %s: %s; no more is written", self._path, error)
            self._path = None
