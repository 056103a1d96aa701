"""Many ranks: time and memory of planning, and the gap that is left."""

import resource
import time
from multiprocessing import get_context
from typing import Any

from benchmarks.harness import Report
from headrace.collectives.demand import Collective
from headrace.topology import presets

MB, MIB, GIB = 1_000_000, 1 << 20, 1 << 30
LIMITS_S = {
    "80-gpus-allgather": 20,
    "1024-gpus-allgather": 60,
    "1024-gpus-allreduce": 60,
    "4096-ranks-torus-allgather": 600,
}


def bars() -> dict[str, str]:
    """Return the limits of time, and of memory for the largest."""
    made = {f"seconds-{name}": f"<={limit}" for name, limit in LIMITS_S.items()}
    return {**made, "gib-4096-ranks-torus-allgather": "<=8"}


def measure(report: Report, *, quick: bool) -> None:
    """Plan each in a process of its own, whose peak memory is its own."""
    del quick  # seconds either way
    for name in LIMITS_S:
        with get_context("spawn").Pool(1) as pool:
            found = pool.apply(plan, (name,))
        report.row("scale", case=name, **found)
        report.bar(f"seconds-{name}", found["seconds"])
        if name.startswith("4096"):
            report.bar(f"gib-{name}", found["peak_gib"])


def plan(name: str) -> dict[str, Any]:
    """Build the topology, then plan, prove, simulate and bound; only the planning is timed."""
    if name == "80-gpus-allgather":
        made, seconds = _hosts()
    else:
        made, seconds = _orbits(name)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    return {**made, "seconds": seconds, "peak_gib": peak}


def _hosts() -> tuple[dict[str, Any], float]:
    from headrace.collectives.plan.cost.model import FULL
    from headrace.collectives.plan.generators.table import ALL_GENERATORS
    from headrace.collectives.plan.portfolio import plan_collective
    from headrace.collectives.plan.request import Method
    from headrace.collectives.run.synthesis import NativeSearch

    topology = presets.ndv2_taccl_1mb(10)
    began = time.monotonic()
    found = plan_collective(
        topology,
        Collective.ALLGATHER,
        80 * MB,
        generators=ALL_GENERATORS,
        method=Method(model=FULL, engine=NativeSearch()),
    )
    seconds = time.monotonic() - began
    return {
        "made_by": found.generator,
        "predicted_us": found.predicted_us,
        "bound_us": found.bound.total_us,
        "gap": found.gap,
    }, seconds


def _orbits(name: str) -> tuple[dict[str, Any], float]:
    from headrace.collectives.plan.generators.orbits.build import plan_orbits

    torus = name.startswith("4096")
    topology = presets.torus((64, 64)) if torus else presets.dgx_a100(128)
    collective = Collective.ALLREDUCE if "allreduce" in name else Collective.ALLGATHER
    began = time.monotonic()
    found = plan_orbits(topology, collective, 4096 * MIB if torus else GIB)
    seconds = time.monotonic() - began
    return {
        "made_by": "orbits",
        "predicted_us": found.predicted_us,
        "bound_us": found.bound.total_us,
        "gap": found.gap,
    }, seconds
