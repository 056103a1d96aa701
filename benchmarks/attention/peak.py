"""Memory of a process during a prompt: a plan's cache beside Transformers' default one."""

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.harness import ROOT, Report
from benchmarks.resident import RETURN_MEMORY

_JOB_S = 600.0


def bars() -> dict[str, str]:
    """Return the bar: of the worst plan."""
    return {"prefill-peak": "<=1.1"}


def measure(report: Report, *, quick: bool) -> None:
    """Measure one prompt by every cache, each in a process of its own."""
    tokens = 1024 if quick else 2048
    stock = _measured("default", tokens)
    others = stock["growth"] - stock["stock_bytes"]
    shares: list[float] = []
    for name in stock["plans"]:
        measured = _measured(name, tokens)
        shares.append((measured["growth"] - others) / stock["stock_bytes"])
        report.row(
            "memory during a prompt",
            cache=name,
            tokens=tokens,
            peak_over_stock=shares[-1],
            allocated_over_stock=measured["allocated_bytes"] / stock["stock_bytes"],
        )
    report.bar("prefill-peak", max(shares))
    report.note(
        f"peak: one request of {tokens:,} tokens, 16 layers of 32 heads of 64 in bfloat16; growth "
        "of resident memory less what the default cache's prompt takes beside that cache, over the "
        "default cache's bytes"
    )


def _measured(name: str, tokens: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.attention.prompt_memory", name, str(tokens)]
    environment = {**os.environ, **RETURN_MEMORY, "PYTHONPATH": str(ROOT.parent)}
    job = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, timeout=_JOB_S
    )
    return json.loads(job.stdout.splitlines()[-1])
