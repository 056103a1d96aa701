"""Models beyond the paper's: plans within five minutes, and what of their memory is covered.

Captured on fake tensors at full size, with times by a roofline of the paper's GPU.
"""

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import Report
from benchmarks.kept import KeptRows
from benchmarks.memory.papers import UNET3D_OVERHEAD, UNET3D_SHARE
from benchmarks.memory.planning import FULL, P100, Steps
from benchmarks.memory.workloads import LIBRARIES, MORE, Workload
from headrace._native import ScheduleSearch
from headrace.memory.errors import BudgetError
from headrace.memory.graph import Graph
from headrace.memory.plan.solution import SolveLimits
from headrace.memory.plan.solve import solve_schedule

SECTION = "models"
_QUICK_MODELS = ("unet3d", "gpt12", "vit_small", "transformers_llama")
_SHARES = (0.7, UNET3D_SHARE)
"""Budgets, as shares of a plain run's peak above parameters, inputs and gradients; the paper plans
3D-UNet, where these are few, for the latter (A.3)."""
_ALLOWED_S = 300.0
_SOLVE_S, _QUICK_SOLVE_S = 200.0, 15.0
_SECONDS, _UNPLANNED = "models-planned-within-seconds", "models-without-a-plan"


def bars() -> dict[str, str]:
    """Return the bars: the longest from the model to a plan, and budgets without one."""
    return {_SECONDS: f"<= {_ALLOWED_S:g}", _UNPLANNED: "<= 0"}


def measure(report: Report, *, quick: bool) -> None:
    """Capture and plan every model that an interrupted run has not planned."""
    kept = KeptRows("memory", SECTION, quick=quick, folder=report.state_folder)
    for workload in (*MORE, *LIBRARIES):
        if not quick or workload.name in _QUICK_MODELS:
            _add_rows(kept, workload, _QUICK_SOLVE_S if quick else _SOLVE_S)
    rows = list(kept.rows.values())
    for row in rows:
        papers = (row["model"], row["budget"]) == ("unet3d", UNET3D_SHARE)
        report.row(
            f"models beyond the paper's ({P100.name})",
            **row,
            papers_overhead=UNET3D_OVERHEAD if papers else None,
        )
    _judge(report, rows)
    report.note(
        "models: budgets are shares of what a plain run's peak is above parameters, inputs and "
        "gradients. Seconds are from the model to the plan, capture included. covered: share of "
        "what a plain run stores from the forward to the backward pass that can be computed again "
        "or by another implementation; the rest is opaque, and stored. GB are 1e9 bytes. "
        "papers_overhead: A.3's, measured at that share of all of PyTorch's memory"
    )
    kept.clear()


def _judge(report: Report, rows: Sequence[dict[str, Any]]) -> None:
    report.bar(_SECONDS, max(row["seconds"] for row in rows))
    report.bar(_UNPLANNED, sum(row["overhead"] is None for row in rows))


def _add_rows(kept: KeptRows, workload: Workload, seconds: float) -> None:
    keys = {share: f"{workload.name} {share}" for share in _SHARES}
    if all(key in kept.rows for key in keys.values()):
        return
    began = time.monotonic()
    steps = Steps.of(workload)
    capture_s = time.monotonic() - began
    for share, key in keys.items():
        if key not in kept.rows:
            kept.add(key, _row(steps, share, capture_s, seconds))


def _row(steps: Steps, share: float, capture_s: float, seconds: float) -> dict[str, Any]:
    graph = steps.graphs[FULL]
    least = graph.resident_bytes + sum(graph.storages[each].nbytes for each in graph.results)
    above = steps.plain_bytes - least
    row: dict[str, Any] = {
        "model": steps.workload.name,
        "batch": steps.workload.batch,
        "operators": len(graph.operators),
        "plain_gb": steps.plain_bytes / 1e9,
        "above_gb": above / 1e9,
        "covered": covered_share(graph),
        "budget": share,
    }
    began = time.monotonic()
    try:
        budget = least + int(share * above)
        found = solve_schedule(graph, budget, ScheduleSearch, limits=SolveLimits(seconds=seconds))
    except BudgetError:
        taken = capture_s + time.monotonic() - began
        return {**row, "overhead": None, "gap": None, "seconds": taken}
    return {
        **row,
        "overhead": found.time_us / steps.plain_us - 1,
        "gap": found.gap,
        "seconds": capture_s + time.monotonic() - began,
    }


def covered_share(graph: Graph) -> float:
    """Return the share of what a plain run stores for its backward pass that a plan may not store.

    Its creator may run again, or each of its readers in the backward pass has an implementation
    that does not read it.
    """
    before, after = graph.operators[: graph.forward_count], graph.operators[graph.forward_count :]
    created = {
        storage: operator for operator in before for storage in operator.implementations[0].creates
    }
    stored = {storage for each in after for storage in each.implementations[0].reads} & set(created)
    avoidable = {
        storage
        for storage in stored
        if created[storage].again
        or all(
            any(storage not in way.reads for way in each.implementations)
            for each in after
            if storage in each.implementations[0].reads
        )
    }
    whole = sum(graph.storages[each].nbytes for each in stored)
    return sum(graph.storages[each].nbytes for each in avoidable) / whole if whole else 1.0
