"""Examples of headrace inside other tools, each in a process of its own."""

import tempfile
import time
from pathlib import Path

from benchmarks.harness import Report
from benchmarks.instruments.integrations import INTEGRATIONS, run_integration


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return {"integrations-failed": "<=0"}


def measure(report: Report, *, quick: bool) -> None:
    """Run every example, and count those that fail or whose tool is not installed."""
    del quick  # all of them are quick
    failed = 0
    for integration in INTEGRATIONS:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            problem, text = run_integration(integration, Path(folder))
            seconds = round(time.perf_counter() - began, 1)
        failed += bool(problem)
        last = next(reversed(text.strip().splitlines()), "") if problem else ""
        report.row(
            "integrations",
            integration=integration.name,
            seconds=seconds,
            problem=": ".join(filter(None, (problem, last))) or "none",
        )
    report.bar("integrations-failed", failed)
