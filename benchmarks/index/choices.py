"""Configurations of headrace in the benchmark: chosen for a workload, or fixed."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.index.maps import OrderedMap
from benchmarks.index.workload import MISS, Mix, Workload
from headrace.errors import ArtifactError

DEFAULT: Mapping[str, Any] = {}
"""The native defaults."""
COMPACT: Mapping[str, Any] = {"fill": 0.95}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A configuration's settings, its name, and the seconds that choosing it took."""

    settings: Mapping[str, Any]
    name: str
    seconds: float


def headrace(settings: Mapping[str, Any], label: str = "headrace", **more: Any) -> OrderedMap:
    """Return our map with a configuration."""
    return OrderedMap(label=label, kind="headrace", settings=settings, **more)


def told(mix: Mix) -> Mapping[str, Any]:
    """Return a gapped array under ALEX's cost model, told the share of inserts."""
    changes = mix.inserts + mix.erases
    return {"leaf": "gapped", "insert_fraction": round(min(changes, 1.0), 3)}


def choose(workload: Workload) -> Choice:
    """Return what measuring and planning choose for a workload, as `headrace index` does.

    Raises
    ------
    ImportError, AttributeError : in a build without trials.
    ArtifactError : without a model.
    """
    from headrace.index.measure.survey import survey_trace
    from headrace.index.plan.choose import plan
    from headrace.index.run.trial import keep_memory, trial
    from headrace.index.trace import Trace

    kept = workload.operations != MISS
    trace = Trace(
        loaded=workload.loaded, operations=workload.operations[kept], keys=workload.codes[kept]
    )
    begun = time.perf_counter()
    profile = survey_trace(trace)
    keep_memory(profile.sample)
    found = plan(profile, trial=trial).configuration
    taken = time.perf_counter() - begun
    return Choice(settings=asdict(found), name=found.name, seconds=taken)


def choose_or_default(workload: Workload) -> Choice:
    """Return the choice, or the native defaults in a build that cannot choose."""
    try:
        return choose(workload)
    except (ImportError, AttributeError, ArtifactError):
        return Choice(settings=DEFAULT, name="default", seconds=0.0)
