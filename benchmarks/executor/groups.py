"""Making a group: its time and its file descriptors, beside Gloo's in the same processes."""

import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import Report

RANKS = (2, 4, 8)
BAR_RANKS = 4
LIMIT_S = 240.0

TIME = "group-time-over-gloo"
DESCRIPTORS = "group-descriptors"


def bars() -> dict[str, str]:
    """Return the bars: time as a multiple of Gloo's, and descriptors, at four ranks of one host."""
    return {TIME: "<=2", DESCRIPTORS: "<=8"}


def measure(report: Report, *, quick: bool) -> None:
    """Make groups of both backends in turn, in every number of ranks."""
    for ranks in RANKS:
        figures = _make_groups(ranks, 15 if quick else 50)
        gloo, headrace = (figures["ms"][backend][2:] for backend in ("gloo", "headrace"))
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(headrace, gloo, strict=True)
        )
        gloo_cpu, headrace_cpu = (
            statistics.median(figures["cpu_ms"][backend][2:]) for backend in ("gloo", "headrace")
        )
        descriptors = figures["descriptors"]
        report.row(
            "making a group, ranks of one host",
            ranks=ranks,
            headrace_ms=round(statistics.median(headrace), 2),
            gloo_ms=round(statistics.median(gloo), 2),
            time_over_gloo=round(ratio, 2),
            headrace_cpu_ms=round(headrace_cpu, 2),
            gloo_cpu_ms=round(gloo_cpu, 2),
            headrace_descriptors=descriptors["headrace"],
            gloo_descriptors=descriptors["gloo"],
        )
        if ranks == BAR_RANKS:
            report.bar(TIME, ratio)
            report.bar(DESCRIPTORS, descriptors["headrace"])


def _make_groups(ranks: int, repeats: int) -> dict[str, Any]:
    """Return rank 0's figures of a job of `ranks` processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    script = Path(__file__).with_name("groups_rank.py")
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(repeats)],
            env={**os.environ, **common, "OMP_NUM_THREADS": "1", "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        output = processes[0].communicate(timeout=LIMIT_S)[0]
        for process in processes[1:]:
            process.wait(LIMIT_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return json.loads(output)
