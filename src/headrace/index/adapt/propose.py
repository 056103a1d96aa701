"""Proposals: a configuration for what was recorded, and the gain over the one in force."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from headrace.facades import public_value
from headrace.index.configuration import Configuration
from headrace.index.measure.sample import sample_trace
from headrace.index.measure.survey import survey_trace
from headrace.index.plan.choose import plan
from headrace.index.plan.plan import IndexPlan
from headrace.index.profile import IndexProfile
from headrace.index.run.trial import trial
from headrace.index.trace import Trace

ENCODED, TRIED = 200_000, 1_000_000
"""Limits of loaded keys and operations of the samples that are encoded, and that candidates run. In
an index that fits in caches other configurations are the fastest than in a large one; to load half
a million ascending keys takes some tens of milliseconds."""

MOST_S, _TRIAL_S = 0.6, 0.02
"""Time of trials, after which none is to end, and time of one's operations: half of `MOST_S` is for
one trial of each candidate, the slowest included, and more than half of the two seconds that a
change may take are for detection and conversion."""

BATCH = 1024
"""Operations of a window of a trial, if the index is used in batches."""


@public_value("headrace.index")
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


ConfigurationProposer = Callable[[Trace, Configuration, int, bool], Proposal]
"""From what was recorded, the configuration in force, the bytes of a value, and whether operations
come in batches."""


def propose_configuration(
    trace: Trace,
    current: Configuration,
    value_bytes: int,
    in_batches: bool,
    *,
    most_bytes_per_key: float | None = None,
    most_s: float = MOST_S,
) -> Proposal:
    """Return the best configuration by the throughput model and trials, see `plan.choose.plan`.

    Parameters
    ----------
    most_bytes_per_key : cap of memory.
    most_s : time of trials in seconds, see `plan.choose.plan`.

    Raises
    ------
    CapError : no configuration is within the cap.
    TraceError : nothing was recorded.
    """
    provider = partial(
        trial, value_bytes=value_bytes, batch=BATCH if in_batches else 1, most_s=_TRIAL_S
    )
    profile = _surveyed(trace)
    candidates = _candidates(profile, current, most_bytes_per_key)
    proposed = plan(
        profile,
        trial=provider,
        top=len(candidates),
        most_s=most_s,
        most_bytes_per_key=most_bytes_per_key,
        configurations=candidates,
    )
    best = proposed.chosen
    in_force = next(c for c in proposed.candidates if c.configuration == current)
    now_per_s = in_force.trial_per_s or provider([current], profile.sample)[0].operations_per_s
    return Proposal(
        configuration=best.configuration, gain=best.per_s / max(now_per_s, 1e-9), plan=proposed
    )


def _surveyed(trace: Trace) -> IndexProfile:
    """Return the profile of a trace with a sample that is larger than the encoded one."""
    sample = sample_trace(trace, TRIED)
    sample = replace(sample, loaded=np.sort(sample.loaded))
    return replace(survey_trace(trace, most=ENCODED), sample=sample)


def _candidates(
    profile: IndexProfile, current: Configuration, most_bytes_per_key: float | None
) -> tuple[Configuration, ...]:
    """Return the best of each type of leaf, the second of all, the default, and what is in force.

    The model orders configurations of one type well, but not so well types, and knows nothing about
    batches. Perfect leaves, which take the longest to be made, are not for a workload that may
    change again: they are tried only if the model puts them first.
    """
    ranked = plan(profile, most_bytes_per_key=most_bytes_per_key).candidates
    candidates = [candidate.configuration for candidate in ranked[:2]]
    for candidate in ranked:
        if candidate.configuration.leaf not in ("perfect", *(c.leaf for c in candidates)):
            candidates.append(candidate.configuration)
    return tuple(dict.fromkeys((*candidates, Configuration(), current)))
