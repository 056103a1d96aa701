"""Plans beside jobs: bytes on the wire and steps that are predicted, and those that are counted.

The plan knows the profile of the clicks, the rate of the links, the device's time, and the
processor time that a short run of each process took; it sees nothing of the job.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.embeddings.bed import MBIT
from benchmarks.embeddings.timing import DENSE, Network, TimedJob, Turns, timed_job
from benchmarks.harness import Report
from headrace.embeddings import EmbeddingPlan, EmbeddingProfile, StepCosts, Synchronisation
from headrace.embeddings.data.parts import ReaderPart, part_batches
from headrace.embeddings.measure.accesses import measure_accesses
from headrace.embeddings.measure.rates import MeasuredBatches
from headrace.embeddings.plan.choose import JobRequirements, plan_embeddings
from headrace.embeddings.plan.commits import FAILURES_S
from headrace.testbed.rates import PAYLOAD_SHARE

LOOKAHEAD = 100
DESIGNS = ("targeted", "lrpp", "replicated")
RATIOS = (0.5, 1.0, 2.0)
_MEASURED = 150
"""Batches of the profile."""

_SETTLE_S = 0.5
_WITH_PAUSES = ("compute_s", "fetch_s")
"""Times of a trainer in which it also waits for its next turn."""

_COUNTED_STEPS = 20
_PARAMETERS = DENSE["DLRM"]


def bars() -> dict[str, str]:
    """Return the bars."""
    return {"predicted-bytes-error": "<=0.02", "predicted-step-error": "<=0.15"}


FULL_ONLY = True


def measure(report: Report, *, quick: bool) -> None:
    """Plan, run, and compare, with each number of trainers."""
    del quick
    turns = Turns(rounds=5, steps=6)
    bytes_errors: list[float] = []
    step_errors: list[float] = []
    for trainers in (2, 4):
        network = Network(trainers=trainers, mbit=MBIT)
        profile = profile_of(network)
        with timed_job(network, DESIGNS, LOOKAHEAD, turns) as job:
            for design in DESIGNS:
                bytes_errors.append(_bytes(report, job, profile, design))
            for ratio in RATIOS:
                step_errors += _steps(report, job, profile, ratio, turns)
    report.bar("predicted-bytes-error", max(bytes_errors))
    report.bar("predicted-step-error", max(step_errors))


def profile_of(network: Network) -> EmbeddingProfile:
    """Return the profile of a network's clicks, with processor times."""
    network.workload.write_clicks()
    batches = MeasuredBatches(part_batches(network.workload.data(), ReaderPart()))
    profile = measure_accesses(
        iter(batches), trainers=network.trainers, lookahead=LOOKAHEAD, most_batches=_MEASURED
    )
    seconds = batches.processor_seconds(network.trainers, _dim(network))
    return replace(profile, processor_seconds=seconds)


def _dim(network: Network) -> int:
    (dim,) = network.workload.dims
    return dim


def plan_of(
    profile: EmbeddingProfile,
    network: Network,
    design: str,
    compute_s: float,
    *,
    failures_s: float = FAILURES_S,
) -> EmbeddingPlan:
    """Return the plan of a job on a network, whose device computes for so long."""
    return plan_embeddings(
        profile,
        JobRequirements(
            row_bytes=4 * _dim(network),
            dense_bytes=4 * _PARAMETERS,
            servers=1,
            readers=1,
            synchronisation=Synchronisation(design),
            failures_s=failures_s,
        ),
        StepCosts(
            compute_s=compute_s,
            link_bytes_per_s=1e6 / 8 * network.mbit * PAYLOAD_SHARE,
            processors=os.cpu_count() or 1,
        ),
    )


def _bytes(report: Report, job: TimedJob, profile: EmbeddingProfile, design: str) -> float:
    """Count the bytes of a design on the trainers' links; return the prediction's error."""
    plan = plan_of(profile, job.network, design, job.pooled_s)
    _, counts = job.turn(
        design, "headrace", job.pooled_s / 2, _COUNTED_STEPS, _PARAMETERS, settle_s=_SETTLE_S
    )
    moved = plan.moved
    between = moved.critical + moved.delayed + moved.averaged
    predicted = {
        "fetched": moved.fetched,
        "evicted": plan.moved.written - 8 * moved.written / (8 + plan.row_bytes),
        "critical": moved.critical,
        "delayed": moved.delayed,
    }
    on_links = moved.of_trainers + between  # between trainers: sent and received
    counted = (counts["wire_bytes"] + counts["received_bytes"]) / _COUNTED_STEPS
    report.row(
        f"MB of a step, of all trainers, predicted, {job.network}",
        design=design,
        **{name: number / 1e6 for name, number in predicted.items()},
        sent_and_received=on_links / 1e6,
    )
    report.row(
        f"MB of a step, of all trainers, counted, {job.network}",
        design=design,
        **{name: counts[f"{name}_bytes"] / _COUNTED_STEPS / 1e6 for name in predicted},
        sent_and_received=counted / 1e6,
    )
    return abs(on_links / counted - 1)


def _steps(
    report: Report, job: TimedJob, profile: EmbeddingProfile, ratio: float, turns: Turns
) -> Sequence[float]:
    """Time the steps of every design; return the predictions' errors."""
    compute_s = ratio * job.pooled_s
    times = job.times(ratio, turns, _PARAMETERS, [(design, "headrace") for design in DESIGNS])
    errors: list[float] = []
    for design in DESIGNS:
        plan = plan_of(profile, job.network, design, compute_s)
        assert plan.time is not None
        measured_s = times.median_ms(design) / 1e3
        errors.append(abs(plan.time.step_s / measured_s - 1))
        report.row(
            f"steps, {job.network}, emulated device",
            design=design,
            device_over_pooled=ratio,
            device_ms=1e3 * compute_s,
            predicted_ms=1e3 * plan.time.step_s,
            measured_ms=1e3 * measured_s,
            error=errors[-1],
            bound=plan.time.bound,
        )
        _resources(report, job, design, ratio, plan.time.resources_s, times.counts[design])
    return errors


def _resources(
    report: Report,
    job: TimedJob,
    design: str,
    ratio: float,
    resources_s: Mapping[str, float],
    counts: Mapping[str, float],
) -> None:
    batches = counts["batches"] * job.network.trainers
    measured = {
        name: counts[name] / batches
        for name in counts
        if name.endswith("_s") and name not in _WITH_PAUSES
    }
    for kind, seconds in (("predicted", resources_s), ("measured", measured)):
        report.row(
            f"ms of a trainer's step, {kind}, {job.network}",
            design=design,
            device_over_pooled=ratio,
            **{name.removesuffix("_s"): 1e3 * part_s for name, part_s in seconds.items()},
        )
