"""Four ranks on one host: headrace, Open MPI and Gloo in turn, every size and collective."""

from benchmarks.executor.launch import groups_on_one_host, rivals_here
from benchmarks.executor.patterns import COLLECTIVES
from benchmarks.executor.turns import (
    KIB,
    MIB,
    Case,
    least,
    ratio,
    rounded,
    size_text,
    time_in_turns,
)
from benchmarks.harness import Report

RANKS = 4
SIZES = (KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
QUICK_SIZES = (KIB, MIB, 16 * MIB, 64 * MIB)
LARGE_BYTES = 16 * MIB
HUGE_BYTES = 256 * MIB

OVER_GLOO = "over-gloo-1MiB"
OVER_OPENMPI = "over-openmpi-1MiB"
OVER_OPENMPI_LARGE = "over-openmpi-16MiB-up"
LENT_OVER_OPENMPI_LARGE = "lent-over-openmpi-16MiB-up"


def bars() -> dict[str, str]:
    """Return the bars: the rival's time over headrace's, the worst collective's."""
    return {
        OVER_GLOO: ">=3",
        OVER_OPENMPI: ">=1",
        OVER_OPENMPI_LARGE: ">=1.5",
        LENT_OVER_OPENMPI_LARGE: ">=1.5",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Time everything, and give the bars."""
    gloo: list[float | None] = []
    openmpi: list[float | None] = []
    large: list[float | None] = []
    lent: list[float | None] = []
    rivals = rivals_here(report, ("native", "lent", "openmpi", "headrace", "gloo"))
    with groups_on_one_host(rivals, RANKS) as groups:
        for size in QUICK_SIZES if quick else SIZES:
            for collective in COLLECTIVES:
                case = Case.of(collective, size, quick=quick)
                rounds = 3 if quick or size >= HUGE_BYTES else 5
                times = time_in_turns(groups, case, rounds)
                over_openmpi = ratio(times, "openmpi", "native")
                lent_over_openmpi = ratio(times, "openmpi", "lent")
                over_gloo = ratio(times, "gloo", "headrace")
                report.row(
                    f"one host, {RANKS} ranks",
                    collective=collective.value,
                    size=size_text(size),
                    native_us=round(times["native"], 1),
                    lent_us=round(times["lent"], 1),
                    openmpi_us=rounded(times.get("openmpi"), 1),
                    torch_us=round(times["headrace"], 1),
                    gloo_us=round(times["gloo"], 1),
                    over_openmpi=rounded(over_openmpi, 3),
                    lent_over_openmpi=rounded(lent_over_openmpi, 3),
                    over_gloo=rounded(over_gloo, 3),
                    calls=case.pool * case.bursts * rounds,
                )
                if size == MIB:
                    gloo.append(over_gloo)
                    openmpi.append(over_openmpi)
                if size >= LARGE_BYTES:
                    large.append(over_openmpi)
                    lent.append(lent_over_openmpi)
    report.bar(OVER_GLOO, least(gloo))
    report.bar(OVER_OPENMPI, least(openmpi))
    report.bar(OVER_OPENMPI_LARGE, least(large))
    report.bar(LENT_OVER_OPENMPI_LARGE, least(lent))
    report.note(
        "one host: medians over calls of the slowest rank's time; native is headrace's own "
        "interface, lent the same on buffers that the other ranks may read, beside mpi4py's calls "
        "on buffers; torch is headrace through torch, beside "
        "Gloo through torch; float32; every result is checked"
    )
