"""Racks from bandwidth: shuffled hosts on testbeds of four shapes, each surveyed as by a job.

Single pairs show an uplink at half a host's rate; only concurrent flows show one as fast as a host.
"""

import time
from dataclasses import replace

from benchmarks.harness import Report
from benchmarks.instruments.beds import Bed, groups_text
from headrace.collectives.measure.launch.agents import measure_testbed
from headrace.testbed import Testbed

BEDS = (
    Bed(name="2x4", racks=(4, 4), host_mbit=200, uplink_mbit=100),
    Bed(name="4x2", racks=(2, 2, 2, 2), host_mbit=200, uplink_mbit=100),
    Bed(name="3x3", racks=(3, 3, 3), host_mbit=200, uplink_mbit=100),
    Bed(name="5-2-1", racks=(5, 2, 1), host_mbit=200, uplink_mbit=100),
)
AS_FAST = 1.0
"""Uplink over host rate, of the second row of every shape: only permutation traffic shows those."""

SEEDS = (1, 2, 3)


def bars() -> dict[str, str]:
    """Return one bar a shape: the share of surveys that found the racks, all of them exactly."""
    return {f"racks-found-{bed.name}": ">=1" for bed in BEDS}


def measure(report: Report, *, quick: bool) -> None:
    """Add a row a survey and give the bars."""
    for bed in BEDS:
        found: list[bool] = []
        for seed in SEEDS[:1] if quick else SEEDS:
            found.append(_survey(report, replace(bed, seed=seed)))
        if not quick:
            uplink = bed.host_mbit * AS_FAST
            found.append(_survey(report, replace(bed, uplink_mbit=uplink, seed=SEEDS[0])))
        report.bar(f"racks-found-{bed.name}", sum(found) / len(found))


def _survey(report: Report, bed: Bed) -> bool:
    with Testbed.up(bed.spec, fallback=False) as testbed:
        began = time.monotonic()
        profile = measure_testbed(testbed, bed.rank_hosts)
        took_s = time.monotonic() - began
    exact = sorted(profile.groups) == sorted(bed.groups)
    report.row(
        "racks from bandwidth",
        shape=bed.name,
        seed=bed.seed,
        uplink_of_host=bed.uplink_mbit / bed.host_mbit,
        found=groups_text(profile.groups),
        truth=groups_text(bed.groups),
        exact="yes" if exact else "NO",
        survey_s=round(took_s, 1),
    )
    return exact
