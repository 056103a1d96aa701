"""Trials: what running a sample with a configuration gave, and the provider that runs it.

Planning stays pure: what runs on hardware is handed in (`headrace.index.run.trial`).
"""

from collections.abc import Callable, Sequence
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
    seconds : elapsed time of the trial, with loading and freeing; of several by turns a share; 0
        if not known.
    leaves : leaves at the end by type, in the order of `tables.LEAVES`.
    """

    operations_per_s: float
    bytes: int
    keys: int
    seconds: float = 0.0
    leaves: tuple[int, int, int, int] = (0, 0, 0, 0)


TOGETHER = 4
"""Configurations that run by turns: each takes memory of its own, and a share of the caches."""

TrialProvider = Callable[[Sequence[Configuration], Trace], Sequence[ConfigurationTrial]]
"""Loads an index of each configuration, runs the operations on them by turns, and returns the
results in the order of the configurations."""
