"""The automatic choice of a level against every fixed one and plain DDP, paired.

On testbeds of shaped links copies of one network take turns in the same processes: plain DDP, the
hook with each fixed level, and ``"auto"`` among these. Its trials of other levels count, but for
the first ones, which every job makes once. Then the links' rate is changed in mid-run.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.compression.auto_rank import AUTO, PLAIN
from benchmarks.compression.model import JobOnBed, job_roles
from benchmarks.harness import Report
from benchmarks.instruments.beds import Bed
from benchmarks.kept import KeptRows
from headrace.compression.adapt.auto import DEFAULT_LEVELS
from headrace.testbed import Testbed

SECTION = "auto"
COMPUTE_S = 0.1
RATES = (30, 100, 300, 1000)
FAST, SLOW = 1000, 30
FOLLOWING = 2
"""Workers of the job whose rate changes: at 1 Gbit/s two share two processors without delay."""
NEAR = 1.1
"""A step is as good as the best level's, in the section on changes, if it is within this factor."""
GAIN_MBIT = 100

_REPEATS, _QUICK_REPEATS = 32, 10
_BLOCK = 3
_START_STEPS, _MOST_START_STEPS = 10, 80
_FOLLOW_STEPS, _WINDOW = 45, 5
_WIDTH = 1.96

BEST_UPPER, BEST_WORST, PLAIN_UPPER, GAIN, FOLLOWS = (
    "auto-of-best-upper",
    "auto-of-best-worst",
    "auto-of-plain-upper",
    "auto-over-plain-100mbit",
    "auto-follows-steps",
)


def bars() -> dict[str, str]:
    """Return bar name -> bound; the first and third hold in 95% of the cells."""
    return {
        BEST_UPPER: "<= 1.03",
        BEST_WORST: "<= 1.08",
        PLAIN_UPPER: "<= 1.01",
        GAIN: ">= 3",
        FOLLOWS: "<= 30",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoCell:
    """A network on links of one rate."""

    workers: int
    network: str
    mbit: float

    @property
    def key(self) -> str:
        """Text that is the same in another run."""
        return f"{self.workers} {self.network} {self.mbit:g}"


def cells(*, quick: bool) -> list[AutoCell]:
    """Return the cells by workers."""
    if quick:
        return [
            AutoCell(workers=2, network="convolutional", mbit=FAST),
            AutoCell(workers=4, network="convolutional", mbit=GAIN_MBIT),
        ]
    return [
        AutoCell(workers=workers, network=network, mbit=rate)
        for workers in (2, 4)
        for network in ("convolutional", "perceptron")
        for rate in RATES
    ]


def measure(report: Report, *, quick: bool) -> None:
    """Measure the cells and changes that an interrupted run has not measured, and give the bars."""
    kept = KeptRows("compression", "auto", quick=quick, folder=report.state_folder)
    wanted = cells(quick=quick)
    for workers in sorted({cell.workers for cell in wanted}):
        left = [each for each in wanted if each.workers == workers and each.key not in kept.rows]
        changes = {f"to {rate}": rate for rate in (SLOW, FAST) if workers == FOLLOWING}
        changes = {key: rate for key, rate in changes.items() if key not in kept.rows}
        if not left and not changes:
            continue
        bed = Bed(name=f"{workers}", racks=(workers,), host_mbit=FAST, uplink_mbit=FAST)
        with (
            Testbed.up(bed.spec, fallback=False) as testbed,
            job_roles(testbed, "benchmarks.compression.auto_rank", workers) as roles,
        ):
            job = JobOnBed(testbed, roles)
            for cell in left:
                kept.add(cell.key, _cell(job, cell, _QUICK_REPEATS if quick else _REPEATS))
            for key, rate in changes.items():
                kept.add(key, _follow(job, rate))
            job.end()
    rows = [kept.rows[cell.key] for cell in wanted]
    follows = [row for key, row in kept.rows.items() if key.startswith("to ")]
    for row in rows:
        report.row("steps of auto against fixed levels, ms", **row)
    for row in follows:
        report.row("auto after a change of the rate", **row)
    judge(report, rows, follows)
    report.note(
        f"auto: Gloo on a testbed; emulated computing sleeps {COMPUTE_S * 1e3:.0f} ms a step, for "
        "times recorded here and multiplied; levels are those of the default. Ratios are medians "
        "of paired repeats with the upper end of their 95% interval; the bar of the upper ends is "
        "their 95th percentile over the cells. over_plain: the least of the cells"
    )
    kept.clear()


def judge(
    report: Report, rows: Sequence[Mapping[str, Any]], follows: Sequence[Mapping[str, Any]]
) -> None:
    """Give the bars of the cells, and of the changes of the rate."""
    report.bar(BEST_UPPER, _share_within(rows, "of_best_upper"))
    report.bar(BEST_WORST, max(row["of_best"] for row in rows))
    plain = [row for row in rows if row["best"] == PLAIN]
    report.bar(PLAIN_UPPER, _share_within(plain, "of_plain_upper") if plain else None)
    slow = [row for row in rows if row["workers"] == 4 and row["mbit"] <= GAIN_MBIT]
    report.bar(GAIN, min(row["over_plain"] for row in slow))
    report.bar(FOLLOWS, max(row["steps"] for row in follows))


def _share_within(rows: Sequence[Mapping[str, Any]], column: str) -> float:
    """Return the figure that 95% of the rows do not exceed."""
    return float(np.percentile([row[column] for row in rows], 95, method="higher"))


def _block(job: JobOnBed, arm: str, count: int) -> tuple[list[float], list[dict[str, Any]]]:
    """Return the milliseconds of steps, each that of the slowest rank, and the ranks' answers."""
    answers = job.ask("steps", arm=arm, count=count)
    return [max(step) for step in zip(*(a["ms"] for a in answers), strict=True)], answers


def _open(job: JobOnBed, network: str) -> list[str]:
    """Make the copies, and let each take its first steps, auto until it has chosen."""
    asked = {"network": network, "levels": list(DEFAULT_LEVELS), "seconds": COMPUTE_S}
    arms: list[str] = job.ask("open", **asked)[0]["arms"]
    for arm in arms:
        taken = 0
        while taken < _MOST_START_STEPS:
            count = _START_STEPS if arm == AUTO else _BLOCK
            _, answers = _block(job, arm, count)
            taken += count
            if arm != AUTO or not answers[0]["trying"]:
                break
    return arms


def _cell(job: JobOnBed, cell: AutoCell, repeats: int) -> dict[str, Any]:
    job.set_rate(cell.mbit)
    arms = _open(job, cell.network)
    taken: dict[str, list[float]] = {arm: [] for arm in arms}
    level = ""
    for number in range(repeats):
        for arm in arms[:: 1 if number % 2 else -1]:
            times, answers = _block(job, arm, _BLOCK)
            taken[arm].append(statistics.fmean(times))
            if arm == AUTO:
                level = answers[0]["levels"][-1]
    fixed = {arm: statistics.median(times) for arm, times in taken.items() if arm != AUTO}
    best = min(fixed, key=lambda arm: fixed[arm])
    of_best, best_upper = _ratio(taken[AUTO], taken[best])
    of_plain, plain_upper = _ratio(taken[AUTO], taken[PLAIN])
    return {
        "workers": cell.workers,
        "network": cell.network,
        "mbit": cell.mbit,
        "n": repeats,
        **{arm: round(statistics.median(times), 1) for arm, times in taken.items()},
        "best": best,
        "level": level,
        "of_best": round(of_best, 4),
        "of_best_upper": round(best_upper, 4),
        "of_plain_upper": round(plain_upper, 4),
        "over_plain": round(1 / of_plain, 2),
    }


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return the median of paired ratios, and the upper end of its 95% interval (by ranks)."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    rank = round(len(ratios) / 2 + _WIDTH * len(ratios) ** 0.5 / 2)
    return statistics.median(ratios), ratios[min(rank, len(ratios) - 1)]


def _follow(job: JobOnBed, mbit: float) -> dict[str, Any]:
    """Change the rate in mid-run; `steps`: until auto's are near the best level's."""
    before = SLOW if mbit == FAST else FAST
    job.set_rate(before)
    arms = _open(job, "convolutional")
    job.set_rate(mbit)
    times, answers = _block(job, AUTO, _FOLLOW_STEPS)
    fixed = {arm: statistics.median(_block(job, arm, 2 * _BLOCK)[0]) for arm in arms if arm != AUTO}
    best = min(fixed.values())
    found = next(
        (
            lag
            for lag in range(len(times) - _WINDOW + 1)
            if statistics.median(times[lag : lag + _WINDOW]) <= NEAR * best
        ),
        len(times),
    )
    for row in answers[0]["events"]:
        print(f"auto: {row}", file=sys.stderr)
    return {
        "from_mbit": before,
        "to_mbit": mbit,
        "first_ms": round(statistics.median(times[:3]), 1),
        "last_ms": round(statistics.median(times[-_WINDOW:]), 1),
        "best_ms": round(best, 1),
        "level": answers[0]["levels"][-1],
        "steps": found,
    }
