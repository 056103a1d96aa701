"""Measured memory and paired step times: ResNet-50, 10 classes, batch 8, 128 x 128, CPU.

MiB are above parameters and inputs, gradients included. All ways take turns in one process, on one
thread; each has its own copy of the network.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.harness import Report
from benchmarks.jobs import WHERE
from benchmarks.memory.fitted import BARS, Budget, Fitted, Outcome, rises, summary
from benchmarks.memory.reference import WRONG, Reference, Verdict
from benchmarks.memory.rivals import BY_BLOCK, CHECKPOINTS, EAGER, FRACTIONS, Rival, stock
from benchmarks.memory.sac import InfeasibleError, estimates, sac_ilp
from benchmarks.memory.step import (
    MIB,
    Allocations,
    Step,
    Times,
    one_thread,
    paired_times,
    step_allocations,
)
from benchmarks.memory.workloads import RESNET
from benchmarks.resident import RETURN_MEMORY

SECTION = "resnet"
_TABLE = "ResNet-50, 10 classes, batch 8, 128 px"
_SAC_FRACTIONS = (0.9, 0.75, 0.65)
_DECOMPOSED_FRACTIONS = (0.9, 0.5, 0.1)
_RESIDENT_S = 300.0
_BUDGETS_MIB = (204.5, 170.0, 150.0)
"""Of the bars; the largest is the least that torch's own partitioner reaches."""


def bars() -> dict[str, str]:
    """Return bar name -> bound; times are of steps within the named MiB."""
    return {
        **BARS,
        "resident-of-peak": "<= 1.15",
        "resnet-204-over-stock": "<= 1.0",
        "resnet-204-over-eager": "<= 1.08",
        "resnet-170-of-checkpoints-extra": "<= 0.5",
        "resnet-150-over-checkpoint": "<= 1.0",
        "no-harm-time-over-eager": "<= 1.02",
        "no-harm-memory-over-eager": "<= 1.0",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A rival that can take turns, its verdict and its memory."""

    rival: Rival | Budget
    step: Step
    verdict: Verdict
    memory: Allocations
    fitted: Fitted | None = None


def measure(report: Report, *, quick: bool) -> None:
    """Measure memory and gradients of all rivals, then their times by turns."""
    with one_thread():
        rivals = [EAGER, BY_BLOCK, *stock(FRACTIONS[:1])]
        if not quick:
            rivals += [
                *(rival for rival in CHECKPOINTS if rival is not BY_BLOCK),
                *stock(FRACTIONS[1:]),
                *stock(_DECOMPOSED_FRACTIONS, decomposed=True),
                *_integer_programs(),
            ]
        ready = _prepared(report, rivals)
        ready += _fitted(ready[0].memory.peak_bytes)
        rounds = 5 if quick else 9
        times = paired_times({str(at): found.step for at, found in enumerate(ready)}, rounds)
    for at, found in enumerate(ready):
        _row(report, found, times[str(at)], times["0"])
    _monotone_rows(report, ready)
    _bars(report, ready, list(times.values()))
    for rival in (EAGER,) if quick else (EAGER, BY_BLOCK):
        _resident_row(report, rival.name)
    name = budget_name(_BUDGETS_MIB[1])
    report.bar("resident-of-peak", _resident_row(report, name))


def budget_name(mib: float) -> str:
    """Return the name of headrace's row; `resident` reads it."""
    return f"headrace {mib:g} MiB"


def _fitted(eager_bytes: int) -> list[Prepared]:
    """Fit into the budgets of the bars, and into what eager needs."""
    reference = Reference.of(RESNET)
    found: list[Prepared] = []
    for size in (eager_bytes, *(int(mib * MIB) for mib in _BUDGETS_MIB)):
        budget = Budget(name=budget_name(size / MIB), above_bytes=size)
        fitted = budget.fitted(RESNET)
        verdict = reference.judge(fitted.step)
        found.append(
            Prepared(
                rival=budget,
                step=fitted.step,
                verdict=verdict,
                memory=step_allocations(fitted.step),
                fitted=fitted,
            )
        )
    return found


def _bars(report: Report, ready: list[Prepared], times: list[Times]) -> None:
    eager, checkpoint = times[:2]  # the first two rivals
    stock = times[_best_stock(report, ready)]
    own = [at for at, found in enumerate(ready) if found.fitted is not None]
    outcomes = [
        Outcome(fitted=found.fitted, memory=found.memory, times=taken)
        for found, taken in zip(ready, times, strict=True)
        if found.fitted is not None
    ]
    for name, figure in summary(outcomes).items():
        report.bar(name, figure)
    plain, at_204, at_170, at_150 = (times[at] for at in own)
    report.bar("resnet-204-over-stock", at_204.over(stock))
    report.bar("resnet-204-over-eager", at_204.over(eager))
    extra = (at_170.over(eager) - 1) / (checkpoint.over(eager) - 1)
    report.bar("resnet-170-of-checkpoints-extra", extra)
    report.bar("resnet-150-over-checkpoint", at_150.over(checkpoint))
    report.bar("no-harm-time-over-eager", plain.over(eager))
    peaks = ready[own[0]].memory.peak_bytes / ready[0].memory.peak_bytes
    report.bar("no-harm-memory-over-eager", peaks)


def _integer_programs() -> list[Rival]:
    found = estimates(RESNET)
    return [sac_ilp(found, fraction) for fraction in _SAC_FRACTIONS]


def _prepared(report: Report, rivals: Iterable[Rival]) -> list[Prepared]:
    """Run each rival twice; those that do not run have a row without figures."""
    reference = Reference.of(RESNET)
    ready: list[Prepared] = []
    for rival in rivals:
        try:
            step = rival.step(RESNET)
        except InfeasibleError as error:
            report.row(
                "ResNet-50, 10 classes, batch 8, 128 px", rival=rival.name, correct=str(error)
            )
            continue
        verdict = reference.judge(step)
        memory = step_allocations(step)
        ready.append(Prepared(rival=rival, step=step, verdict=verdict, memory=memory))
    return ready


def _row(report: Report, found: Prepared, times: Times, eager: Times) -> None:
    report.row(
        _TABLE,
        rival=found.rival.name,
        kernels=found.rival.kernels,
        peak_mib=found.memory.peak_bytes / MIB,
        gradients_mib=found.memory.kept_bytes / MIB,
        ms=1e3 * times.elapsed,
        over_eager=times.over(eager),
        gradient_error=found.verdict.gradient_error,
        correct=found.verdict.word,
        statistics=found.verdict.statistics,
        predicted_mib=found.fitted and found.fitted.predicted_bytes / MIB,
        predicted_ms=found.fitted and 1e-3 * found.fitted.plan.time_us,
        processor_ms=1e3 * times.typical,
        gap=found.fitted and found.fitted.plan.gap,
    )


def _monotone_rows(report: Report, ready: list[Prepared]) -> None:
    """Count the budgets whose peak is higher than that of a larger one, of torch's and ours."""
    own = [found for found in ready if found.fitted is not None]
    own.sort(key=lambda found: found.fitted.budget_bytes if found.fitted else 0)
    ways = {"headrace": [found.memory.peak_bytes for found in own]}
    for kernels in ("eager's", "decomposed"):
        peaks = {
            found.rival.name: found.memory.peak_bytes
            for found in ready
            if found.fitted is None and found.rival.kernels == kernels
        }
        names = [rival.name for rival in stock(sorted(FRACTIONS))]
        if measured := [peaks[name] for name in names if name in peaks]:
            ways[f"torch's, kernels {kernels}"] = measured
    for name, peaks in ways.items():
        report.row(
            "pairs of budgets of which the smaller has the higher peak",
            budgets_of=name,
            budgets=len(peaks),
            pairs=len(peaks) * (len(peaks) - 1) // 2,
            rises=rises(peaks),
        )


def _best_stock(report: Report, ready: list[Prepared]) -> int:
    """Return the place of torch's budget of least memory."""
    budgets = [
        at
        for at, found in enumerate(ready)
        if found.rival.name.startswith("memory budget") and found.verdict.word != WRONG
    ]
    at = min(budgets, key=lambda at: ready[at].memory.peak_bytes)
    best = ready[at]
    report.note(
        f"least of torch's budgets: {best.memory.peak_bytes / MIB:.1f} MiB "
        f"({best.rival.name}, kernels {best.rival.kernels})"
    )
    return at


def _resident_row(report: Report, rival: str) -> float:
    """Measure the growth of resident memory in a process of its own; return it over the peak."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory.resident", RESNET.name, rival],
        env={**os.environ, **WHERE, **RETURN_MEMORY, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_RESIDENT_S,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    report.row(
        "growth of resident memory, in a process of its own",
        rival=rival,
        peak_mib=found["peak_bytes"] / MIB,
        first_step_mib=found["first_bytes"] / MIB,
        later_step_mib=found["later_bytes"] / MIB,
        later_of_peak=found["later_bytes"] / found["peak_bytes"],
    )
    return found["later_bytes"] / found["peak_bytes"]
