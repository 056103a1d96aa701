"""Proposals: a configuration for what was recorded, and the gain over the one in force."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headrace.index.configuration import Configuration
from headrace.index.measure.survey import survey_trace
from headrace.index.plan.choose import plan
from headrace.index.plan.plan import IndexPlan
from headrace.index.run.trial import trial
from headrace.index.trace import Trace

SAMPLE = 300_000
"""Limit of loaded keys and operations of the sample that candidates run: tens of milliseconds each,
and still more than caches of the second level hold."""

TOP = 4
MOST_S = 0.6
"""Candidates, and time of their trials: half of the two seconds that a change may take are for
detection and conversion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A configuration for a recorded workload.

    Attributes
    ----------
    gain : operations per second over those of the configuration in force, by trials.
    plan : that it is of, if any.
    """

    configuration: Configuration
    gain: float
    plan: IndexPlan | None = None


ConfigurationProposer = Callable[[Trace, Configuration, int], Proposal]
"""From what was recorded, the configuration in force, and the bytes of a value."""


def propose_configuration(
    trace: Trace,
    current: Configuration,
    value_bytes: int,
    *,
    most_bytes_per_key: float | None = None,
    top: int = TOP,
    most_s: float = MOST_S,
) -> Proposal:
    """Return the best configuration by the throughput model and trials, see `plan.choose.plan`.

    Parameters
    ----------
    most_bytes_per_key : cap of memory.
    top, most_s : candidates that are tried, and the time after which no more are, in seconds.

    Raises
    ------
    CapError : no configuration is within the cap.
    TraceError : nothing was recorded.
    """
    provider = partial(trial, value_bytes=value_bytes)
    profile = survey_trace(trace, most=SAMPLE)
    made = plan(
        profile, trial=provider, top=top, most_s=most_s, most_bytes_per_key=most_bytes_per_key
    )
    now = provider(current, profile.sample).operations_per_s
    return Proposal(
        configuration=made.configuration, gain=made.chosen.per_s / max(now, 1e-9), plan=made
    )
