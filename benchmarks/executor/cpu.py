"""Processor time per byte moved, headrace and Gloo through torch in turn."""

import statistics

from benchmarks.executor.launch import groups_on_one_host
from benchmarks.executor.turns import MIB, rotated, size_text
from benchmarks.harness import Report

RANKS = 4
SIZES = (MIB, 16 * MIB, 64 * MIB)
RIVALS = ("headrace", "gloo")
TURN_BYTES = 256 * MIB
"""Of buffers: how many calls a turn has."""

MOST_CALLS = 40
"""Results grow by the number of ranks each call, and float32 ends at 2^128."""

BAR = "cpu-per-gb-of-gloo"


def bars() -> dict[str, str]:
    """Return the bar: headrace's processor time as a share of Gloo's; the worst size's."""
    return {BAR: "<=1"}


def moved_bytes(size: int, ranks: int) -> int:
    """Return what all ranks together must send in an allreduce: 2 (n - 1) / n of it each."""
    return 2 * (ranks - 1) * size


def measure(report: Report, *, quick: bool) -> None:
    """Measure in turn, and give the bar."""
    rounds = 3 if quick else 7
    shares: list[float] = []
    with groups_on_one_host(RIVALS, RANKS) as groups:
        for size in SIZES:
            calls = max(2, min(MOST_CALLS, TURN_BYTES // size // (2 if quick else 1)))
            gb = calls * moved_bytes(size, RANKS) / 1e9
            spent: dict[str, list[float]] = {rival: [] for rival in RIVALS}
            rates: dict[str, list[float]] = {rival: [] for rival in RIVALS}
            for number in range(rounds):
                for rival in rotated(RIVALS, number):
                    answers = groups[rival].ask("cpu", bytes=size, calls=calls)
                    spent[rival].append(sum(answer["cpu_s"] for answer in answers) / gb)
                    rates[rival].append(gb / max(answer["wall_s"] for answer in answers))
            typical = {rival: statistics.median(each) for rival, each in spent.items()}
            shares.append(typical["headrace"] / typical["gloo"])
            report.row(
                f"processor time, allreduce, {RANKS} ranks on one host",
                size=size_text(size),
                headrace_cpu_s_per_gb=round(typical["headrace"], 4),
                gloo_cpu_s_per_gb=round(typical["gloo"], 4),
                of_gloo=round(shares[-1], 3),
                headrace_gb_per_s=round(statistics.median(rates["headrace"]), 3),
                gloo_gb_per_s=round(statistics.median(rates["gloo"]), 3),
                calls=calls * rounds,
            )
    report.bar(BAR, max(shares))
    report.note(
        "processor time: user and system time of all ranks' processes, all their threads, over "
        "the bytes that the ranks must send (2 (n - 1) / n of the buffer each); results checked"
    )
