"""Growth of resident memory in a training step: one process, started with `RETURN_MEMORY`.

``python -m benchmarks.memory.resident WORKLOAD RIVAL`` prints a line of JSON: bytes by which the
first step and a later one grow, and the later one's peak of allocations. The first one also loads
libraries and makes kernels.
"""

import json
import sys

from benchmarks.memory.fitted import Budget
from benchmarks.memory.rivals import CHECKPOINTS, EAGER
from benchmarks.memory.step import MIB, one_thread, step_allocations
from benchmarks.memory.workloads import RESNET, WORKLOADS
from benchmarks.resident import resident_growth

RIVALS = {rival.name: rival for rival in (EAGER, *CHECKPOINTS)}


def main(workload: str, rival: str) -> None:
    """Measure, and print."""
    made = {**WORKLOADS, RESNET.name: RESNET}[workload]
    with one_thread():
        if rival in RIVALS:
            step = RIVALS[rival].step(made)
        else:
            step = Budget(name=rival, above_bytes=_budget_bytes(rival)).fitted(made).step
        first = resident_growth(step.run)
        step.clear()
        later = resident_growth(step.run)
        step.clear()
        peak = step_allocations(step).peak_bytes
    print(json.dumps({"first_bytes": first, "later_bytes": later, "peak_bytes": peak}))


def _budget_bytes(rival: str) -> int:
    """Return the bytes of "headrace 170 MiB"."""
    return int(float(rival.split()[1]) * MIB)


if __name__ == "__main__":
    main(*sys.argv[1:])
