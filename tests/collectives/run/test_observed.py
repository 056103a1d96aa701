"""Calls that torch's profiler, flight recorder and hooks observe.

The profiler showed neither torch's operators nor sizes, works had no type and groups no sequence
number, and hooks were never called: torch's Python layer calls the group past torch's dispatcher.
A profiler that stopped before an asynchronous call ended crashed the process.
"""

from functools import cache
from pathlib import Path

import pytest

from tests.collectives.run import observed_job
from tests.conformance.launch import outputs, ranks, results


@cache
def job() -> list[dict[str, str]]:
    """By rank: check -> what went wrong ("" for nothing)."""
    script = Path(observed_job.__file__)
    with ranks(observed_job.RANKS, script, GLOO_SOCKET_IFNAME="lo") as processes:
        return results(outputs(processes))


@pytest.mark.parametrize("check", [check.__name__ for check in observed_job.CHECKS])
def test_observed(check: str) -> None:
    for rank, found in enumerate(job()):
        assert not found[check], f"rank {rank}:\n{found[check]}"
