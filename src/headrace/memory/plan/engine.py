"""Interface of the local search; it is passed in, so that planning stays pure Python."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

DraftSimulation = tuple[float, int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Of a draft: its time in microseconds, the bytes above the budget, summed over the steps, the
bytes that are allocated while each step runs, (steps,) int64, and lifetimes of storages,
(instances,) int32: the storage, the step that creates it, and the last step at which it is live."""


class ScheduleMoves(Protocol):
    """Simulation of, and moves on, the drafts of one graph and budget.

    Drafts are (3 * steps,) int32: stage, operator and implementation of each step. `stop` is
    polled, and true ends a move with the best draft so far.
    """

    def simulate(self, steps: np.ndarray) -> DraftSimulation | None:
        """Return a draft's simulation; None if it reads what is not live, or was overwritten."""
        ...

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
