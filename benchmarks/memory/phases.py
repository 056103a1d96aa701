"""Worth of the solver's phases: plans without each of them, at equal seconds, over three seeds.

A phase is worth the loss of plans without it: in time, or in the least budget that has a plan. A
phase that is worth less than 1% of both, over all cells, only takes time from the others.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Report
from benchmarks.kept import KeptRows
from benchmarks.memory.planning import FULL, P100, Steps
from benchmarks.memory.workloads import PAPER
from headrace._native import ScheduleSearch
from headrace.memory.errors import BudgetError
from headrace.memory.graph import Graph
from headrace.memory.plan.phases import PHASES, Phase
from headrace.memory.plan.solution import Solution, SolveLimits
from headrace.memory.plan.solve import solve_schedule

SECTION = "phases"
COMPLETE, REPEATED = "all phases", "all phases, again"
"""Rows with all phases. The second shows what two equal runs differ by: limits are in seconds."""
_BISECTIONS = 6
"""Of the least budget, from a plain run's peak down to the resident bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """Networks, shares of a plain run's peak, seeds, and seconds of a plan."""

    networks: Sequence[str]
    shares: Sequence[float]
    seeds: Sequence[int]
    seconds: float
    least_seconds: float


_FULL = _Size(
    networks=[workload.name for workload in PAPER],
    shares=(0.7, 0.53, 0.4, 0.33),
    seeds=(0, 1, 2),
    seconds=10.0,
    least_seconds=3.0,
)
_QUICK = _Size(networks=("unet",), shares=(0.53,), seeds=(0,), seconds=2.0, least_seconds=0.5)


def bars() -> dict[str, str]:
    """Return no bars: the table says which phases earn their place."""
    return {}


def measure(report: Report, *, quick: bool) -> None:
    """Plan every cell with all phases, and without each of them."""
    sizes = _QUICK if quick else _FULL
    kept = KeptRows("memory", SECTION, quick=quick, folder=report.state_folder)
    for workload in PAPER:
        if workload.name not in sizes.networks:
            continue
        steps = Steps.of(workload)
        for seed in sizes.seeds:
            for without in (COMPLETE, REPEATED, *(phase.name for phase in PHASES)):
                key = f"{workload.name} {seed} {without}"
                if key not in kept.rows:
                    kept.add(key, _row(steps, seed, without, sizes))
    for row in worths(list(kept.rows.values())):
        report.row(f"worth of phases ({P100.name})", **row)
    report.note(
        "phases: without one of them, in equal seconds. time: mean of the plans' times over those "
        "with all phases, less 1. gap: mean of what their gaps to the proven bound grow by; the "
        "relaxations prove bounds. least: the same of the least budget with a plan, by bisection. "
        "lost: cells that have a plan with all phases and none without this one. A phase has an "
        f"effect where its figures exceed those of '{REPEATED}'"
    )
    kept.clear()


def _row(steps: Steps, seed: int, without: str, sizes: _Size) -> dict[str, Any]:
    """Return times and gaps of plans at each share, None without one, and the least budget."""
    graph = steps.graphs[FULL]
    phases = tuple(phase for phase in PHASES if phase.name != without)
    plans = [
        planned(graph, int(share * steps.plain_bytes), phases, seed, sizes.seconds)
        for share in sizes.shares
    ]
    return {
        "network": steps.workload.name,
        "seed": seed,
        "phases": without,
        "times_us": [None if plan is None else plan.time_us for plan in plans],
        "gaps": [None if plan is None else plan.gap for plan in plans],
        "least_bytes": least_budget(graph, steps.plain_bytes, phases, seed, sizes.least_seconds),
    }


def planned(
    graph: Graph, budget: int, phases: tuple[Phase, ...], seed: int, seconds: float, gap: float = 0
) -> Solution | None:
    """Return the plan within a budget; None without one."""
    limits = SolveLimits(seconds=seconds, gap=gap)
    try:
        return solve_schedule(
            graph, budget, ScheduleSearch, limits=limits, seed=seed, phases=phases
        )
    except BudgetError:
        return None


def least_budget(
    graph: Graph, plain_bytes: int, phases: tuple[Phase, ...], seed: int, seconds: float
) -> int:
    """Return the least budget for which a plan is found, by bisection; any gap ends a search."""
    low, high = graph.resident_bytes, plain_bytes
    for _ in range(_BISECTIONS):
        middle = (low + high) // 2
        if planned(graph, middle, phases, seed, seconds, gap=1.0) is None:
            low = middle
        else:
            high = middle
    return high


def worths(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each phase: relative losses without it, over all networks and seeds.

    The first is that of all phases, again.
    """
    complete = {(row["network"], row["seed"]): row for row in rows if row["phases"] == COMPLETE}
    losses: list[dict[str, Any]] = []
    for name in (REPEATED, *(phase.name for phase in PHASES)):
        pairs = [
            (row, complete[row["network"], row["seed"]]) for row in rows if row["phases"] == name
        ]
        cells = [
            cell
            for row, reference in pairs
            for cell in zip(
                row["times_us"], reference["times_us"], row["gaps"], reference["gaps"], strict=True
            )
            if cell[1] is not None
        ]
        compared = [cell for cell in cells if cell[0] is not None]
        leasts = [row["least_bytes"] / reference["least_bytes"] for row, reference in pairs]
        losses.append(
            {
                "phase": name,
                "time": _mean([time_us / complete_us - 1 for time_us, complete_us, *_ in compared]),
                "gap": _mean([gap - complete_gap for *_, gap, complete_gap in compared]),
                "least": _mean([least - 1 for least in leasts]),
                "lost": len(cells) - len(compared),
            }
        )
    return losses


def _mean(losses: Sequence[float]) -> float | None:
    return statistics.mean(losses) if losses else None
