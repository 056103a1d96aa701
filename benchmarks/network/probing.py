"""Sixteen hosts, surveyed from nothing: processes started, all probed, a profile returned."""

import statistics
import time

from benchmarks.harness import Report
from benchmarks.instruments.beds import Bed
from headrace.collectives.measure.launch.agents import measure_testbed
from headrace.testbed import Testbed

BED = Bed(name="4x4", racks=(4, 4, 4, 4), host_mbit=200, uplink_mbit=200, seed=1)
BAR = "probing-16-hosts-s"


def bars() -> dict[str, str]:
    """Return the bar: the slowest survey."""
    return {BAR: "<=20"}


def measure(report: Report, *, quick: bool) -> None:
    """Survey a few times; the slowest counts."""
    times: list[float] = []
    with Testbed.up(BED.spec, fallback=False) as testbed:
        for number in range(1 if quick else 3):
            began = time.monotonic()
            profile = measure_testbed(testbed, BED.rank_hosts)
            times.append(time.monotonic() - began)
            report.row(
                "survey of 16 hosts",
                survey=number + 1,
                whole_s=round(times[-1], 2),
                probing_s=round(profile.took_s, 2),
                timed_runs=len(profile.samples["us"]),
                racks="exact" if sorted(profile.groups) == sorted(BED.groups) else "WRONG",
                cut="; ".join(profile.provenance.get("cut", ())) or "nothing",
            )
    report.bar(BAR, max(times))
    report.note(
        f"survey of 16 hosts: from starting 16 processes to the profile; median "
        f"{statistics.median(times):.1f} s; the survey's own budget is 12 s of probing"
    )
