"""Interface of the local search; it is passed in, so that planning stays pure Python."""

from collections.abc import Callable
from typing import Protocol

import numpy as np


class ScheduleMoves(Protocol):
    """Moves on the drafts of one graph and budget.

    Drafts are (3 * steps,) int32: stage, operator and implementation of each step. `stop` is
    polled, and true ends a move with the best draft so far.
    """

    def repair(self, steps: np.ndarray, noise: float, stop: Callable[[], bool]) -> np.ndarray:
        """Return a draft that fits, or one with less excess."""
        ...

    def polish(self, steps: np.ndarray, stop: Callable[[], bool]) -> np.ndarray:
        """Return a draft without the reruns and slow implementations that it can do without."""
        ...

    def exchanged(self, steps: np.ndarray, stop: Callable[[], bool]) -> np.ndarray:
        """Return the best draft with other implementations that are faster together."""
        ...

    def spread(self, steps: np.ndarray, stop: Callable[[], bool]) -> np.ndarray:
        """Return the best draft in which equal blocks are like one of them."""
        ...

    def improve(
        self,
        steps: np.ndarray,
        rounds: int,
        stop: Callable[[], bool],
        report: Callable[[np.ndarray], None],
        /,
    ) -> np.ndarray:
        """Return the best draft of some rounds; `report` is called with every faster one."""
        ...


ScheduleEngine = Callable[..., ScheduleMoves]
"""Constructor of moves from the tables of a graph: `headrace._native.ScheduleSearch`, or one with
its keyword arguments."""
