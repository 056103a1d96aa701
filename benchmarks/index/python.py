"""Python: `headrace.Index.find` on arrays of 65,536 keys, against NumPy's `searchsorted`."""

import json
import os
import subprocess
import sys

from benchmarks.harness import ROOT, Report
from benchmarks.index import answers
from benchmarks.index.cells import FULL, describe_machine
from benchmarks.index.datasets import PAPER
from benchmarks.index.maps import HUGE_PAGES


def bars() -> dict[str, str]:
    return {"python-find-over-searchsorted": ">= 4"}


def measure(report: Report, *, quick: bool) -> None:
    """Measure in processes of their own, which have the allocator's setting of all maps."""
    describe_machine(report)
    loaded, batches = (1_000_000, 16) if quick else (FULL.loaded, 64)
    worst: list[float] = []
    for name in ("osm",) if quick else PAPER:
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.index.python_find", name, str(loaded), str(batches)],
            env={**os.environ, "GLIBC_TUNABLES": HUGE_PAGES, "PYTHONPATH": str(ROOT.parent)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=600,
        )
        found = json.loads(ended.stdout)
        answers.count(found.pop("wrong"))
        report.row("arrays of 65,536 keys in Python, ns a key", keys=name, loaded=loaded, **found)
        worst.append(found["ratio"])
    report.bar("python-find-over-searchsorted", min(worst))
