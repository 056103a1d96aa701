"""Trainers of a job that begins again: whether those that were lost come back."""

import math
import time
from collections.abc import Collection, Mapping
from typing import Any

from headrace.embeddings.run.job.job_processes import ProcessKey, key_of


class TrainerReturns:
    """Trainers that are awaited in a start of a job after a loss.

    A trainer has come back when it attends at the cacher, from `fit` on. One has not if it ends
    before, or has not come so many seconds after all others: scripts take their time to get there.

    Parameters
    ----------
    lost : processes that were lost in the start before.
    trainers : their number.
    return_s : seconds after all others.

    Attributes
    ----------
    absent : lost trainers that have not come back.
    """

    def __init__(self, lost: Collection[ProcessKey], trainers: int, return_s: float) -> None:
        trainers_of_job = {("trainer", rank) for rank in range(trainers)}
        self.absent = trainers_of_job.intersection(lost)
        self._awaited = trainers_of_job - self.absent
        self._return_s = return_s
        self._until = math.inf
        self._await_others()

    @property
    def reason(self) -> str:
        """Reason that those that are absent do not come back, after `left_s`."""
        return f"all others have been there for {self._return_s:g} s"

    def take(self, message: Mapping[str, Any]) -> None:
        """Take a message of the cacher: a trainer "attends"."""
        if "attends" in message:
            key = key_of(message["attends"])
            self.absent.discard(key)
            self._awaited.discard(key)
            self._await_others()

    @property
    def left_s(self) -> float:
        """Seconds after which those that are absent do not come back."""
        return max(0.0, self._until - time.monotonic()) if self.absent else math.inf

    def _await_others(self) -> None:
        if not self._awaited and self._until == math.inf:
            self._until = time.monotonic() + self._return_s
