"""A trace run on an adapted index: what adaptation would do with a workload."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.index.adapt.agent import IndexAdaptation
from headrace.index.adapt.decide import TuningLimits
from headrace.index.adapt.propose import ConfigurationProposer
from headrace.index.configuration import Configuration
from headrace.index.plan.plan import IndexPlan
from headrace.index.run.index import Index
from headrace.index.trace import ERASE, FIND, INSERT, SCAN, SCAN_LENGTH, Trace, decode

BATCH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Result of a trace's run on an adapted index.

    Attributes
    ----------
    seconds : of the operations, in Python's batches, without loading.
    operations : that were run.
    rates : operations per second of each tenth of the trace.
    events : of adaptation, see `IndexAdaptation.records`.
    configuration : at the end.
    statistics : at the end, see `Index.statistics`.
    """

    seconds: float
    operations: int
    rates: Sequence[float]
    events: Sequence[Mapping[str, Any]]
    configuration: Configuration
    statistics: Mapping[str, Any]


def follow_trace(
    trace: Trace,
    plan: IndexPlan | Configuration | None = None,
    *,
    repeats: int = 1,
    proposer: ConfigurationProposer | None = None,
    most_bytes_per_key: float | None = None,
    limits: TuningLimits | None = None,
    log_path: Path | None = None,
) -> Followed:
    """Run the operations of a trace on an index that adapts meanwhile.

    Operations run in windows of `BATCH`: its finds, inserts, erases and scans as a batch each, in
    this order.

    Parameters
    ----------
    plan : of the index at first.
    repeats : runs of the operations, one after another: adaptation takes seconds.
    proposer, most_bytes_per_key, limits, log_path : as of `IndexAdaptation`.
    """
    keys = decode(trace.loaded, trace.kind)
    index = Index(keys, trace.loaded, dtype=trace.kind, plan=plan)
    adaptation = IndexAdaptation(
        index,
        proposer=proposer,
        most_bytes_per_key=most_bytes_per_key,
        limits=limits,
        log_path=log_path,
    )
    rates: list[float] = []
    began = time.perf_counter()
    with adaptation:
        parts = np.array_split(np.arange(len(trace)), min(10, max(len(trace), 1)))
        for part in parts * repeats:
            part_began = time.perf_counter()
            for first in range(0, len(part), BATCH):
                _run_window(index, trace, part[first : first + BATCH])
            rates.append(len(part) / max(time.perf_counter() - part_began, 1e-9))
        seconds = time.perf_counter() - began
    return Followed(
        seconds=seconds,
        operations=len(trace) * repeats,
        rates=rates,
        events=list(adaptation.records.events),
        configuration=index.configuration,
        statistics=index.statistics(),
    )


def _run_window(index: Index, trace: Trace, places: np.ndarray) -> None:
    operations, codes = trace.operations[places], trace.keys[places]
    keys = decode(codes, trace.kind)
    index.find(keys[operations == FIND])
    inserted = operations == INSERT
    index.insert(keys[inserted], codes[inserted])
    index.erase(keys[operations == ERASE])
    for first in keys[operations == SCAN]:
        index.scan(first, SCAN_LENGTH)
