"""One thread a rank beside two: where one rank has all the work, and where all ranks are busy."""

import statistics
from collections.abc import Callable

from benchmarks.executor.launch import Group, groups_on_one_host
from benchmarks.executor.turns import MIB, Case, rotated, size_text, slowest_us, time_turn
from benchmarks.harness import Report
from headrace.collectives.demand import Collective

RANKS = 4
BYTES = 16 * MIB
CALLS = 4
"""Of a turn, after one to warm up."""

RIVALS = ("native", "2 threads")


def bars() -> dict[str, str]:
    """Return no bars: the gain of threads depends on the number of processors."""
    return {}


def measure(report: Report, *, quick: bool) -> None:
    """Time both in turn."""
    case = Case.of(Collective.ALLREDUCE, BYTES, quick=quick)
    turns: dict[str, Callable[[Group], list[float]]] = {
        "reduce of fp8 to one rank, which hears from all": _reduce,
        "allreduce of float32": lambda group: time_turn(group, case),
    }
    with groups_on_one_host(RIVALS, RANKS) as groups:
        for name, turn in turns.items():
            times: dict[str, list[float]] = {rival: [] for rival in RIVALS}
            for number in range(5 if quick else 15):
                for rival in rotated(RIVALS, number):
                    times[rival] += turn(groups[rival])
            one, two = (statistics.median(times[rival]) for rival in RIVALS)
            report.row(
                f"threads, {RANKS} ranks on one host, {size_text(BYTES)}",
                what=name,
                one_ms=round(one / 1e3, 2),
                two_ms=round(two / 1e3, 2),
                one_over_two=round(one / two, 3),
            )
    report.note("threads: HEADRACE_THREADS=1 and 2 at all ranks; every result is checked")


def _reduce(group: Group) -> list[float]:
    return slowest_us(group.ask("reduce", bytes=BYTES, calls=CALLS))
