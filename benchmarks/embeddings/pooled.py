"""TorchRec's own step beside that of the pooled rival: the same batches, tables and network."""

import statistics
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from benchmarks.embeddings.bed import MBIT, spec
from benchmarks.embeddings.drawn import BATCH, capped
from benchmarks.embeddings.turns import Job, job
from benchmarks.harness import ROOT, Report
from benchmarks.installed import installed
from headrace.testbed import Testbed

TRAINERS = 2
DIM = 48
_ROWS = 200_000
"""Of a table at most: memory is not what is compared."""
_BATCHES = 4


def bars() -> dict[str, str]:
    """Return the bars."""
    return {"pooled-of-torchrec": "<=1.1"}


FULL_ONLY = True


def measure(report: Report, *, quick: bool) -> None:
    """Time both rivals by turns, each on its own processes."""
    del quick
    rounds, steps = 12, 6
    with ExitStack() as stack:
        testbed = stack.enter_context(Testbed.up(spec(TRAINERS, MBIT)))
        jobs = {
            "TorchRec": stack.enter_context(_rival(testbed, "rank_of_torchrec", "gloo")),
            "pooled, gloo": stack.enter_context(_rival(testbed, "rank_of_pooled", "gloo")),
            "pooled, headrace": stack.enter_context(_rival(testbed, "rank_of_pooled", "headrace")),
        }
        seconds: dict[str, list[float]] = {name: [] for name in jobs}
        for turn in range(rounds + 1):
            for name, ranks in jobs.items():
                answers = ranks.ask({"steps": steps})
                slowest = map(max, zip(*(answer["seconds"] for answer in answers), strict=True))
                if turn > 0:
                    seconds[name] += list(slowest)[1:]
    for name, times in seconds.items():
        report.row(
            f"pooled rows there and back: {TRAINERS} trainers, {MBIT} Mbit/s, batch {BATCH}",
            by=name,
            ms=1e3 * statistics.median(times),
            least_ms=1e3 * min(times),
        )
    ours = min(statistics.median(seconds[name]) for name in jobs if name != "TorchRec")
    report.bar("pooled-of-torchrec", ours / statistics.median(seconds["TorchRec"]))


@contextmanager
def _rival(testbed: Testbed, module: str, backend: str) -> Generator[Job]:
    environment: dict[str, str | None] = {}
    if module == "rank_of_torchrec":
        environment["PYTHONPATH"] = f"{installed('embeddings', 'torchrec')}:{ROOT.parent}"
    task = {
        "backend": backend,
        "counts": capped(_ROWS),
        "dim": DIM,
        "batch": BATCH,
        "batches": _BATCHES,
    }
    with job(testbed, f"benchmarks.embeddings.{module}", TRAINERS, task, environment) as ranks:
        yield ranks
