"""Record of one rank of a traced collective."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """One rank's times of one call, in ns of its own CLOCK_MONOTONIC (`time.monotonic_ns`).

    Attributes
    ----------
    called_ns, ended_ns : times of the call, and of its return.
    began_ns, passed_ns, bytes : int64, one for each of the rank's steps, in the program's order.
        A step begins with the attempt that moves its first byte (a send then passes it to the
        kernel, or copies it to the shared ring), and is passed when its lane continues. One that
        moves no data begins when it is passed.
    """

    called_ns: int
    ended_ns: int
    began_ns: np.ndarray
    passed_ns: np.ndarray
    bytes: np.ndarray

    @classmethod
    def of(cls, called_ns: int, ended_ns: int, steps: np.ndarray) -> "Recorded":
        """Make a record from rows (began_ns, passed_ns, bytes)."""
        began, passed, moved = steps.T
        return cls(
            called_ns=called_ns, ended_ns=ended_ns, began_ns=began, passed_ns=passed, bytes=moved
        )
