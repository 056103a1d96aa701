"""Memory and time of a GPT of 12 layers with a vocabulary of 50,257, on CPU.

MiB are above parameters and gradients: these are there before the step, which adds to them.
"""

import sys
from collections.abc import Mapping

from benchmarks.harness import Report
from benchmarks.memory.fitted import BARS, Budget, Fitted, Outcome, summary
from benchmarks.memory.networks import GPT
from benchmarks.memory.reference import Reference
from benchmarks.memory.rivals import BY_BLOCK, EAGER, SELECTIVE, SPLIT_LOSS, stock
from benchmarks.memory.step import MIB, Allocations, one_thread, paired_times, step_allocations
from benchmarks.memory.workloads import Workload, text, token_loss
from headrace.memory import BudgetError

SECTION = "gpt"
FULL = Workload(name="gpt12", network=GPT, sample=text(1024), batch=1, loss=token_loss)
QUICK = Workload(
    name="gpt12-narrow",
    network=lambda: GPT(width=192),
    sample=text(256),
    batch=1,
    loss=token_loss,
)
"""A quarter of the width and of the tokens."""


def bars() -> dict[str, str]:
    """Return bar name -> bound; memory at no more than the same rival's time."""
    return {
        "gpt-peak-over-checkpoint": "<= 0.5",
        "gpt-peak-over-split-checkpoint": "<= 0.9",
        **{f"gpt-{name}": bound for name, bound in BARS.items()},
    }


def measure(report: Report, *, quick: bool) -> None:
    """Measure all rivals in turn."""
    workload = QUICK if quick else FULL
    rivals = [EAGER, BY_BLOCK, SPLIT_LOSS]
    if not quick:
        rivals += [SELECTIVE, *stock((0.9, 0.5, 0.1))]
    with one_thread():
        reference = Reference.of(workload)
        steps = {rival.name: rival.step(workload) for rival in rivals}
        verdicts = {name: reference.judge(step) for name, step in steps.items()}
        memory = {name: step_allocations(step, accumulate=True) for name, step in steps.items()}
        own = _fitted(workload, memory)
        for name, fitted in own.items():
            steps[name] = fitted.step
            verdicts[name] = reference.judge(fitted.step)
            memory[name] = step_allocations(fitted.step, accumulate=True)
        times = paired_times(steps, 3 if quick else 7)
    for name, found in times.items():
        report.row(
            f"{workload.name}, {workload.batch} sequence",
            rival=name,
            peak_mib=memory[name].peak_bytes / MIB,
            ms=1e3 * found.elapsed,
            over_eager=found.over(times[EAGER.name]),
            gradient_error=verdicts[name].gradient_error,
            correct=verdicts[name].word,
            budget_mib=own[name].budget_bytes / MIB if name in own else None,
            predicted_mib=own[name].predicted_bytes / MIB if name in own else None,
            predicted_ms=1e-3 * own[name].plan.time_us if name in own else None,
            processor_ms=1e3 * found.typical,
            reorders="; ".join(own[name].reorders) if name in own else None,
        )
    for bar, rival in (
        ("gpt-peak-over-checkpoint", BY_BLOCK),
        ("gpt-peak-over-split-checkpoint", SPLIT_LOSS),
    ):
        peaks = [
            memory[name].peak_bytes for name in own if times[name].over(times[rival.name]) <= 1
        ]
        report.bar(bar, min(peaks) / memory[rival.name].peak_bytes if peaks else None)
    outcomes = [
        Outcome(fitted=fitted, memory=memory[name], times=times[name])
        for name, fitted in own.items()
    ]
    for name, figure in (summary(outcomes) if outcomes else {}).items():
        report.bar(f"gpt-{name}", figure)


def _fitted(workload: Workload, memory: Mapping[str, Allocations]) -> dict[str, Fitted]:
    """Fit into the shares of the checkpoints' peaks that the bars ask for, where that is possible.

    Without a schedule there is none to measure, and no bar.
    """
    found: dict[str, Fitted] = {}
    for rival, share in ((BY_BLOCK, 0.5), (SPLIT_LOSS, 0.9)):
        name = f"headrace, {share:g} of {rival.name}"
        size = int(share * memory[rival.name].peak_bytes)
        budget = Budget(name=name, above_bytes=size, accumulates=True)
        try:
            found[name] = budget.fitted(workload)
        except BudgetError as error:
            print(f"{name}: {error}", file=sys.stderr)
    return found
