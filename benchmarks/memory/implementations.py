"""Times and workspaces of all implementations on this machine, beside the operators' first ones.

From profiles of training steps: plans are made with these figures.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from benchmarks.harness import Report
from benchmarks.kept import KeptRows
from benchmarks.memory import gpt
from benchmarks.memory.fitted import LossModule
from benchmarks.memory.step import MIB, one_thread
from benchmarks.memory.workloads import RESNET, WORKLOADS, Workload
from headrace.memory.exactness import Exactness
from headrace.memory.graph import Graph, Implementation
from headrace.memory.measure.step import StepConditions, capture_step, profile_step

SECTION = "implementations"
_STEPS = (
    (RESNET, 8),
    (WORKLOADS["mobilenet_v2"], 16),
    (WORKLOADS["unet"], 1),
    (gpt.FULL, 1),
    (WORKLOADS["vit_small"], 8),
)
_QUICK_STEPS = ((RESNET, 2), (gpt.QUICK, 1))


def bars() -> dict[str, str]:
    """Return no bars: what a plan takes is judged as a whole."""
    return {}


def measure(report: Report, *, quick: bool) -> None:
    """Profile the steps that an interrupted run has not profiled."""
    kept = KeptRows("memory", SECTION, quick=quick, folder=report.state_folder)
    for workload, batch in _QUICK_STEPS if quick else _STEPS:
        whole = f"{workload.name} {batch}"
        if whole in kept.rows:
            continue
        for row in rows_of(_measured(workload, batch)):
            named = {"step": f"{workload.name}, batch {batch}", **row}
            kept.add(f"{whole} {row['operators']} {row['implementation']}", named)
        kept.add(whole, {})
    for row in map(dict, filter(None, kept.rows.values())):
        step = row.pop("step")
        report.row(f"implementations: {step}", **row)
    report.note(
        "implementations: times of one thread. first_ms: of the operators' first implementation, "
        "all of them together; over_first: the median of the operators' ratios, and the "
        "largest. Workspaces and what is created are of the operator with most of it. What an "
        "implementation saves is mostly what it need not read"
    )
    kept.clear()


def _measured(workload: Workload, batch: int) -> Graph:
    model, inputs, targets = workload.make(batch)
    job = StepConditions(loss=LossModule(workload.loss))
    with one_thread():
        captured = capture_step(model, (inputs, targets), job, Exactness.CONDITIONAL)
        return profile_step(model, captured, job).graph


def rows_of(graph: Graph) -> Iterator[dict[str, Any]]:
    """Return a row for each kind of operator and implementation but the first."""
    found: defaultdict[tuple[str, str], list[tuple[Implementation, Implementation]]]
    found = defaultdict(list)
    for operator in graph.operators:
        first, *others = operator.implementations
        for way in others:
            found[operator.kind, way.name].append((first, way))

    def mib(ways: list[Implementation]) -> tuple[float, float]:
        """Return the largest workspace, and the most that is created."""
        created = (sum(graph.storages[each].nbytes for each in way.creates) for way in ways)
        return max(way.workspace_bytes for way in ways) / MIB, max(created) / MIB

    for (kind, name), pairs in sorted(found.items()):
        firsts, ways = [first for first, _ in pairs], [way for _, way in pairs]
        ratios = [way.time_us / first.time_us for first, way in pairs if first.time_us]
        (first_workspace, first_created), (workspace, created) = mib(firsts), mib(ways)
        yield {
            "operators": kind,
            "implementation": name,
            "count": len(pairs),
            "first_ms": sum(first.time_us for first in firsts) / 1e3,
            "over_first": statistics.median(ratios) if ratios else None,
            "largest": max(ratios, default=None),
            "first_workspace_mib": first_workspace,
            "workspace_mib": workspace,
            "first_created_mib": first_created,
            "created_mib": created,
        }
