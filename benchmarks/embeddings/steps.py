"""Training steps with rows from caches beside those of the rivals, on an emulated device.

The device computes by sleeping, for a multiple of the measured time of the pooled rows' fetch and
write-back. Every design and rival moves its rows for real.
"""

from collections.abc import Sequence

from benchmarks.embeddings.bed import MBIT, SLOW_MBIT
from benchmarks.embeddings.timing import BACKENDS, DENSE, Network, TimedJob, Times, Turns, timed_job
from benchmarks.embeddings.workload import Workload
from benchmarks.harness import Report

LOOKAHEAD = 100
TARGETED = "targeted"
RATIOS = (0.5, 1.0, 2.0)

_OVER_POOLED = {"0.5": ">=1.7", "1": ">=1.5"}
_OF_IDEAL = {"0.5": "<=1.20", "1": "<=1.12", "2": "<=1.07"}
_OVER_DISTINCT = ">=1.08"

NETWORKS = {
    "": Network(trainers=2, mbit=MBIT),
    "-4-trainers": Network(trainers=4, mbit=MBIT),
    f"-{SLOW_MBIT}-mbit": Network(trainers=2, mbit=SLOW_MBIT),
    f"-4-trainers-{SLOW_MBIT}-mbit": Network(trainers=4, mbit=SLOW_MBIT),
}
"""By the suffix of their bars' names; a quick run has the first one."""

WIDE = Network(trainers=2, mbit=MBIT, workload=Workload(dims=(128,)))


def bars() -> dict[str, str]:
    """Return the bars."""
    declared: dict[str, str] = {}
    for suffix in NETWORKS:
        for ratio, bound in _OVER_POOLED.items():
            declared[f"dlrm-over-pooled-{ratio}{suffix}"] = bound
        for ratio, bound in _OF_IDEAL.items():
            declared[f"of-ideal-{ratio}{suffix}"] = bound
        declared[f"over-distinct-0.5{suffix}"] = _OVER_DISTINCT
    return declared | {
        "over-distinct-0.5-dim-128": _OVER_DISTINCT,
        "wide-and-deep-over-pooled-1": ">=1.6",
    }


NOT_IN_QUICK = frozenset(
    {
        *(name for name in bars() if not name.startswith(("dlrm-over", "of-ideal"))),
        *(name for name in bars() if name.endswith(tuple(filter(None, NETWORKS)))),
    }
)


def measure(report: Report, *, quick: bool) -> None:
    """Measure each network."""
    turns = Turns(rounds=3, steps=2) if quick else Turns(rounds=7, steps=6)
    for suffix, network in NETWORKS.items():
        if suffix and quick:
            continue
        with timed_job(network, [TARGETED], LOOKAHEAD, turns) as job:
            _exchange(report, job)
            for ratio in RATIOS:
                _ratio(report, job, ratio, turns, suffix, quick=quick)
            if not suffix and not quick:
                _wide_and_deep(report, job, turns)
    if not quick:
        with timed_job(WIDE, [TARGETED], LOOKAHEAD, turns) as job:
            _exchange(report, job)
            times = job.times(0.5, turns, DENSE["DLRM"], _variants(["distinct"], BACKENDS))
            _rows(report, job, "DLRM", 0.5, times)
            report.bar("over-distinct-0.5-dim-128", _over(times, "distinct"))
    report.note(
        "of-ideal: over a step without rows, the device's time and the average of the dense part's "
        "gradients; rivals and ideal on the faster of Gloo and headrace. idle: share of the "
        "processors' time, which all hosts of the testbed share"
    )


def _variants(rivals: Sequence[str], backends: Sequence[str]) -> list[tuple[str, str]]:
    """Return rivals on backends, the ideal beside the design that is compared with it."""
    timed = [(rival, backend) for rival in rivals for backend in backends]
    return [*timed, *(("ideal", backend) for backend in backends), (TARGETED, "headrace")]


def _exchange(report: Report, job: TimedJob) -> None:
    for backend, seconds in job.exchange_s.items():
        report.row(
            "pooled rows there and back, without lookups",
            network=str(job.network),
            backend=backend,
            ms=1e3 * seconds,
        )


def _ratio(
    report: Report,
    job: TimedJob,
    ratio: float,
    turns: Turns,
    suffix: str,
    *,
    quick: bool,
) -> None:
    """Time a ratio; a quick run has the rival with bars that gate, on the faster backend."""
    backends = [job.fastest_backend] if quick else BACKENDS
    rivals = ["pooled", "distinct"] if ratio < 2 and not quick else ["pooled"]
    times = job.times(ratio, turns, DENSE["DLRM"], _variants(rivals, backends))
    _rows(report, job, "DLRM", ratio, times)
    name = f"{ratio:g}"
    if name in _OVER_POOLED:
        report.bar(f"dlrm-over-pooled-{name}{suffix}", _over(times, "pooled"))
    if ratio == 0.5 and not quick:
        report.bar(f"over-distinct-{name}{suffix}", _over(times, "distinct"))
    report.bar(f"of-ideal-{name}{suffix}", 1 / _over(times, "ideal"))


def _wide_and_deep(report: Report, job: TimedJob, turns: Turns) -> None:
    times = job.times(1.0, turns, DENSE["Wide & Deep"], _variants(["pooled"], BACKENDS))
    _rows(report, job, "Wide & Deep", 1.0, times)
    report.bar("wide-and-deep-over-pooled-1", _over(times, "pooled"))


def _over(times: Times, rival: str) -> float:
    """Return the time of a rival on the faster backend over the design's."""
    names = [name for name in times.rounds if name.startswith(f"{rival}, ")]
    return times.over(times.fastest(names), TARGETED)


def _rows(report: Report, job: TimedJob, model: str, ratio: float, times: Times) -> None:
    for variant in times.rounds:
        report.row(
            f"steps of {model}, {job.network}, emulated device",
            device_over_pooled=ratio,
            device_ms=1e3 * ratio * job.pooled_s,
            variant=variant,
            step_ms=times.median_ms(variant),
            over_targeted=times.over(variant, TARGETED),
            sent_mb=times.counts[variant]["wire_bytes"] / times.counts[variant]["batches"] / 1e6,
            idle=times.idle[variant],
        )
    counts = times.counts[TARGETED]
    batches = counts["batches"] * job.network.trainers
    report.row(
        f"a trainer's step of {model}, targeted, {job.network}",
        device_over_pooled=ratio,
        fetch_wait_ms=1e3 * (counts["batch_wait_s"] + counts["fetch_wait_s"]) / batches,
        critical_ms=1e3 * (counts["exchange_wait_s"] + counts["update_s"]) / batches,
        delayed_wait_ms=1e3 * counts["delayed_wait_s"] / batches,
        delayed_ms=1e3 * (counts["delayed_s"] + counts["write_back_s"]) / batches,
        critical_rows=counts["critical_rows"] / batches,
        delayed_rows=counts["delayed_rows"] / batches,
        fetched_rows=counts["fetched_rows"] / batches,
        evicted_rows=counts["evicted_rows"] / batches,
    )
