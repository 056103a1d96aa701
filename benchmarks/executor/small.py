"""Eight bytes between two ranks: the fixed cost of a call."""

import numpy as np

from benchmarks.executor.launch import groups_on_one_host, rival_columns, rivals_here
from benchmarks.executor.turns import Case, ratio, time_in_turns
from benchmarks.harness import Report
from headrace.collectives.demand import Collective

RANKS = 2
BYTES = 8
POOL = 64

NATIVE = "allreduce-8B-native-of-openmpi"
TORCH = "allreduce-8B-torch-of-gloo"
CALLBACK = "callback-overhead-us"


def bars() -> dict[str, str]:
    """Return the bars: headrace's time as a share of the rival's, and a callback's overhead."""
    return {NATIVE: "<=1", TORCH: "<=0.5", CALLBACK: "<=20"}


def measure(report: Report, *, quick: bool) -> None:
    """Time all rivals in turn, and give the bars."""
    case = Case(collective=Collective.ALLREDUCE, bytes=BYTES, pool=POOL, bursts=10 if quick else 30)
    rounds = 5 if quick else 9
    rivals = rivals_here(report, ("native", "openmpi", "headrace", "gloo"))
    with groups_on_one_host(rivals, RANKS) as groups:
        times = time_in_turns(groups, case, rounds)
        answers = groups["headrace"].ask("callbacks", pairs=2000 if quick else 10000)
    for rival, typical in times.items():
        report.row(
            f"allreduce of {BYTES} B, {RANKS} ranks",
            **rival_columns(rival),
            us=round(typical, 2),
            calls=case.pool * case.bursts * rounds,
        )
    report.bar(NATIVE, ratio(times, "native", "openmpi"))
    report.bar(TORCH, ratio(times, "headrace", "gloo"))
    # the mean over ranks, as a late rank lengthens the other's call; then paired
    plain, chained = (np.mean([a[k] for a in answers], 0) for k in ("plain_us", "chained_us"))
    report.row(
        f"future of an allreduce of 4 B, {RANKS} ranks",
        wait_us=round(float(np.median(plain)), 2),
        callback_us=round(float(np.median(chained)), 2),
    )
    report.bar(CALLBACK, float(np.median(chained - plain)))
