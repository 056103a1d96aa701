"""Designs of caches beside each other: the bytes that a next step waits for, and steps."""

from collections.abc import Mapping

from benchmarks.embeddings.bed import MBIT
from benchmarks.embeddings.designs import NOT_DELAYED
from benchmarks.embeddings.timing import DENSE, Network, TimedJob, Times, Turns, timed_job
from benchmarks.harness import Report

SECTION = "designs"
LOOKAHEAD = 100
RATIO = 0.5
LRPP_NOT_DELAYED = f"lrpp{NOT_DELAYED}"
PARTITIONED = "distinct"
DESIGNS = ("replicated", PARTITIONED, LRPP_NOT_DELAYED, "lrpp", "targeted")
_OF_REPLICATED: Mapping[int, Mapping[str, str]] = {
    2: {"lrpp": "<=0.36", "targeted": "<=0.20"},
    4: {"targeted": "<=0.15"},
}
"""Bound of critical bytes, by trainers and design."""


def bars() -> dict[str, str]:
    """Return the bars."""
    declared = {
        f"critical-bytes-{design}-{trainers}-trainers": bound
        for trainers, designs in _OF_REPLICATED.items()
        for design, bound in designs.items()
    }
    return declared | {"lrpp-over-replicated": ">=1.15"}


FULL_ONLY = True


def measure(report: Report, *, quick: bool) -> None:
    """Measure with each number of trainers."""
    del quick
    turns = Turns(rounds=7, steps=4)
    for trainers, bounds in _OF_REPLICATED.items():
        network = Network(trainers=trainers, mbit=MBIT)
        with timed_job(network, DESIGNS, LOOKAHEAD, turns) as job:
            times = job.times(
                RATIO, turns, DENSE["DLRM"], [(design, "headrace") for design in DESIGNS]
            )
            _rows(report, job, times)
        for design in bounds:
            report.bar(
                f"critical-bytes-{design}-{trainers}-trainers",
                _critical(times, design) / _critical(times, "replicated"),
            )
        if trainers == 2:
            report.bar("lrpp-over-replicated", times.over("replicated", "lrpp"))
    report.note(
        "designs of caches: the paper's LRPP outperforms replicated caches by 22.8%, partitioned "
        "ones by 59.8%, with 8 trainers at 10 Gbit/s; its partitioned caches wait 80 to 90 ms for "
        "collectives set up at each step, these exchange rows as the others do, and examples stay "
        "in the data's order. Its delayed synchronisation saves up to 44% of the time in which a "
        "step waits for its caches"
    )
    report.note(
        "critical bytes: of gradients and rows, sent by all trainers after a batch before the next "
        "one's rows are read"
    )


def _critical(times: Times, design: str) -> float:
    """Return the critical bytes of a step, of all trainers together."""
    counts = times.counts[design]
    return counts["critical_bytes"] / counts["batches"]


def _rows(report: Report, job: TimedJob, times: Times) -> None:
    for design, counts in times.counts.items():
        batches, trainers = counts["batches"], job.network.trainers
        report.row(
            f"designs of caches, {job.network}, DLRM, device {RATIO:g} of pooled",
            design=design,
            step_ms=times.median_ms(design),
            over_lrpp=times.over(design, "lrpp"),
            critical_mb=counts["critical_bytes"] / batches / 1e6,
            delayed_mb=counts["delayed_bytes"] / batches / 1e6,
            fetched_mb=counts["fetched_bytes"] / batches / 1e6,
            sent_mb=counts["wire_bytes"] / batches / 1e6,
            critical_ms=1e3 * (counts["exchange_wait_s"] + counts["update_s"]) / batches / trainers,
            delayed_wait_ms=1e3 * counts["delayed_wait_s"] / batches / trainers,
        )
