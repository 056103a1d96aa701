"""Trials: what running a sample with a configuration gave, and the provider that runs it.

Planning stays pure: what runs on hardware is handed in (`headrace.index.run.trial`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.index.configuration import Configuration
from headrace.index.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationTrial:
    """Result of a trace's run by one configuration.

    Attributes
    ----------
    operations_per_s : of the operations, without loading.
    bytes : memory of the index after the last operation.
    keys : in the index then, at least 1.
    seconds : elapsed time of the whole trial, with loading and freeing; 0 if not known.
    leaves : leaves at the end by type, in the order of `tables.LEAVES`.
    """

    operations_per_s: float
    bytes: int
    keys: int
    seconds: float = 0.0
    leaves: tuple[int, int, int, int] = (0, 0, 0, 0)


TrialProvider = Callable[[Configuration, Trace], ConfigurationTrial]
"""Loads an index, runs the operations on it, and returns the result."""
