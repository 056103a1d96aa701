"""A schedule in a job of two ranks: see scheduled_job.py."""

from functools import cache
from pathlib import Path

import pytest

from tests.compression.adapt import scheduled_job
from tests.conformance.launch import outputs, ranks, results


@cache
def job() -> list[dict[str, str]]:
    """By rank: check -> what went wrong ("" for nothing)."""
    script = Path(scheduled_job.__file__)
    with ranks(scheduled_job.RANKS, script, GLOO_SOCKET_IFNAME="lo") as processes:
        return results(outputs(processes))


@pytest.mark.slow
@pytest.mark.parametrize("check", [check.__name__ for check in scheduled_job.CHECKS])
def test_scheduled(check: str) -> None:
    for rank, found in enumerate(job()):
        assert not found[check], f"rank {rank}:\n{found[check]}"
