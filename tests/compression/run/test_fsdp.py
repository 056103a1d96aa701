"""Compressed gradients of fully sharded models in a job of two ranks: see fsdp_job.py."""

from functools import cache
from pathlib import Path

import pytest

from tests.compression.run import fsdp_job
from tests.conformance.launch import outputs, ranks, results

DEADLINE_S = 120
pytestmark = pytest.mark.timeout(DEADLINE_S + 30)


@cache
def job(backend: str) -> list[dict[str, str]]:
    """By rank: check -> what went wrong ("" for nothing)."""
    script = Path(fsdp_job.__file__)
    with ranks(fsdp_job.RANKS, script, backend, GLOO_SOCKET_IFNAME="lo") as processes:
        return results(outputs(processes, DEADLINE_S))


@pytest.mark.parametrize("backend", ["gloo", "headrace"])
def test_fully_sharded(backend: str) -> None:
    for rank, found in enumerate(job(backend)):
        assert set(found) == {check.__name__ for check in fsdp_job.CHECKS}
        for check, problem in found.items():
            assert not problem, f"{check} on rank {rank}:\n{problem}"
