"""Collectives of 64 MiB as a share of the limit by the machine's memory bandwidth."""

import statistics

from benchmarks.executor.launch import Group, groups_on_one_host, rivals_here
from benchmarks.executor.patterns import COLLECTIVES
from benchmarks.executor.turns import MIB, Case, rotated, rounded, size_text, slowest_us, time_turn
from benchmarks.harness import Report
from headrace.collectives.demand import Collective

RANKS = 4
BYTES = 64 * MIB
COPIES = 4
"""A turn, after one to warm up."""

BARS = {"native": "memory-limit-64MiB", "lent": "lent-memory-limit-64MiB"}


def bars() -> dict[str, str]:
    """Return the bars: the time at the memory's rate over the measured one; the worst's."""
    return dict.fromkeys(BARS.values(), ">=0.6")


def touched_bytes(collective: Collective, size: int, ranks: int) -> int:
    """Return the bytes that all ranks together must at least read and write; see the README.

    Parameters
    ----------
    size : of the whole buffer at a rank.
    """
    match collective:
        case Collective.REDUCE_SCATTER:  # all inputs read, one result in all written
            return ranks * size + size
        case Collective.ALLGATHER:  # every block read once, and written at the others
            return size + (ranks - 1) * size
        case Collective.ALLREDUCE:  # the one, then the other
            return (2 * ranks + 1) * size
        case Collective.ALL_TO_ALL:  # all inputs read, all outputs written, own blocks too
            return 2 * ranks * size
        case _:
            raise ValueError(f"no limit is defined for {collective}")


def copied_bytes(size: int, ranks: int) -> int:
    """Return the bytes that all ranks together read and write when each copies `size`."""
    return 2 * ranks * size


def limit_us(collective: Collective, size: int, ranks: int, copy_us: float) -> float:
    """Return the shortest time (us), where all ranks copy `size` at once in `copy_us`."""
    return copy_us * touched_bytes(collective, size, ranks) / copied_bytes(size, ranks)


def measure(report: Report, *, quick: bool) -> None:
    """Time copies and collectives in turn, by the same processes, and give the bar."""
    rivals = rivals_here(report, ("native", "lent", "openmpi"))
    copies: list[float] = []
    typical: dict[Collective, dict[str, float]] = {}
    with groups_on_one_host(rivals, RANKS) as groups:
        for collective in COLLECTIVES:
            times: dict[str, list[float]] = {rival: [] for rival in groups}
            case = Case.of(collective, BYTES, quick=quick)
            for number in range(3 if quick else 7):
                copies += _copies(groups["native"])
                for rival in rotated(list(groups), number):
                    times[rival] += time_turn(groups[rival], case)
            typical[collective] = {each: statistics.median(taken) for each, taken in times.items()}
    copy_us = statistics.median(copies)
    fractions: dict[str, list[float]] = {rival: [] for rival in BARS}
    for collective, took_us in typical.items():
        best_us = limit_us(collective, BYTES, RANKS, copy_us)
        of_limit = {rival: best_us / us for rival, us in took_us.items()}
        for rival in BARS:
            fractions[rival].append(of_limit[rival])
        report.row(
            f"memory limit, {RANKS} ranks, {size_text(BYTES)}",
            collective=collective.value,
            copy_gb_per_s=round(copied_bytes(BYTES, RANKS) / copy_us / 1e3, 2),
            must_touch_mib=touched_bytes(collective, BYTES, RANKS) // MIB,
            limit_ms=round(best_us / 1e3, 2),
            native_ms=round(took_us["native"] / 1e3, 2),
            of_limit=round(of_limit["native"], 3),
            lent_of_limit=round(of_limit["lent"], 3),
            openmpi_of_limit=rounded(of_limit.get("openmpi"), 3),
        )
    for rival, bar in BARS.items():
        report.bar(bar, min(fractions[rival]))
    report.note(
        "memory limit: reads and writes that cannot be avoided, at the rate at which the same "
        "four processes copy buffers of that size at once (reads and writes counted; the median "
        f"of {len(copies)} copies between the collectives' turns)"
    )


def _copies(group: Group) -> list[float]:
    return slowest_us(group.ask("copy", bytes=BYTES, calls=COPIES))
