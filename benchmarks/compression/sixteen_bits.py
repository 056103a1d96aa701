"""Models in bfloat16 at 100 Mbit/s: headrace's hook beside torch's own hooks and plain DDP.

Two ranks on a testbed of shaped links, on Gloo and on headrace's backend. Copies of one network of
bfloat16 take turns in the same processes; a backward pass sleeps, layer by layer, so that steps
wait for the network. The means are compared before: those of headrace's hook are as close to the
exact mean as those of torch's.
"""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.compression.model import JobOnBed, job_roles
from benchmarks.harness import Report
from benchmarks.instruments.beds import Bed
from headrace.testbed import Testbed

SECTION = "sixteen-bits"
RANKS = 2
MBIT = 100
PLAIN = "plain"
CAST, FACTORS = "bf16", "powersgd"
ARMS = (PLAIN, f"torch {CAST}", f"headrace {CAST}", f"torch {FACTORS}", f"headrace {FACTORS}")
BACKENDS = {"gloo": ">= 0.95", "headrace": ">= 1.0"}

_BLOCK = 3
_ERROR_SLACK = 1.02  # of errors that are called the same


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return {
        **{f"bf16-over-torch-bf16-hook-{backend}": bound for backend, bound in BACKENDS.items()},
        "powersgd-over-plain-bf16": ">= 1.3",
        "powersgd-bf16-over-torch": ">= 0.95",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Measure all arms on both backends; the bars of PowerSGD are the smaller of both."""
    plain: list[float] = []
    torch_own: list[float] = []
    for backend, _ in BACKENDS.items():
        times = _times(report, backend, turns=7 if quick else 25)
        report.bar(
            f"bf16-over-torch-bf16-hook-{backend}",
            _ratio(times[f"torch {CAST}"], times[f"headrace {CAST}"]),
        )
        plain.append(_ratio(times[PLAIN], times[f"headrace {FACTORS}"]))
        torch_own.append(_ratio(times[f"torch {FACTORS}"], times[f"headrace {FACTORS}"]))
    report.bar("powersgd-over-plain-bf16", min(plain))
    report.bar("powersgd-bf16-over-torch", min(torch_own))
    report.note(
        f"sixteen-bits: {RANKS} ranks at {MBIT} Mbit/s, a network of bfloat16 whose backward pass "
        "sleeps; ratios are medians of paired turns. Factors of PowerSGD are sent in bfloat16 by "
        "both hooks. torch's PowerSGD has all gradients in one bucket: it hangs on more"
    )


def _times(report: Report, backend: str, turns: int) -> dict[str, list[float]]:
    """Return the milliseconds of each arm's turns, when its means have been compared."""
    bed = Bed(name=f"16-{backend}", racks=(RANKS,), host_mbit=MBIT, uplink_mbit=MBIT)
    with (
        Testbed.up(bed.spec, fallback=False) as testbed,
        job_roles(testbed, "benchmarks.compression.sixteen_bits_rank", RANKS) as roles,
    ):
        job = JobOnBed(testbed, roles)
        job.ask("open", backend=backend, arms=list(ARMS))
        errors = {
            arm: max(answer["distance"] for answer in job.ask("distance", arm=arm)) for arm in ARMS
        }
        _compare(errors)
        times: dict[str, list[float]] = {arm: [] for arm in ARMS}
        sent: dict[str, float] = {}
        for number in range(turns):
            for arm in ARMS[:: 1 if number % 2 else -1]:
                answers = job.ask("steps", arm=arm, count=_BLOCK)
                steps = zip(*(answer["ms"] for answer in answers), strict=True)
                times[arm].append(statistics.fmean(max(step) for step in steps))
                sent[arm] = answers[0]["sent_bytes"]
        job.end()
    for arm in ARMS:
        report.row(
            "steps of models in bfloat16",
            backend=backend,
            arm=arm,
            ms=round(statistics.median(times[arm]), 1),
            error=round(errors[arm], 5),
            sent=round(sent[arm]),
        )
    return times


def _compare(errors: Mapping[str, float]) -> None:
    """Raise RuntimeError unless headrace's means are as close to the exact ones as torch's."""
    for codec in (CAST, FACTORS):
        if errors[f"headrace {codec}"] > _ERROR_SLACK * errors[f"torch {codec}"]:
            raise RuntimeError(f"{codec}: errors of the means are {errors}, needs the same")


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
