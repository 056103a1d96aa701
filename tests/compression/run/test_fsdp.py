"""Compressed gradients of fully sharded models in a job of two ranks: see fsdp_job.py."""

from functools import cache
from pathlib import Path

import pytest
import torch

from tests.compression.run import fsdp_job
from tests.conformance.launch import outputs, ranks, results

DEADLINE_S = 120
pytestmark = pytest.mark.timeout(DEADLINE_S + 30)


@cache
def job(backend: str, device: str) -> list[dict[str, str]]:
    """By rank: check -> what went wrong ("" for nothing)."""
    script = Path(fsdp_job.__file__)
    with ranks(fsdp_job.RANKS, script, backend, device, GLOO_SOCKET_IFNAME="lo") as processes:
        return results(outputs(processes, DEADLINE_S))


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize(
    ("backend", "device"),
    [
        ("gloo", "cpu"),
        ("headrace", "cpu"),
        ("gloo", "double"),
        pytest.param("headrace", "cuda", marks=gpu),
    ],
)
def test_fully_sharded(backend: str, device: str) -> None:
    checks = fsdp_job.STAGED if device == "double" else fsdp_job.CHECKS
    for rank, found in enumerate(job(backend, device)):
        assert set(found) == {check.__name__ for check in checks}
        for check, problem in found.items():
            assert not problem, f"{check} on rank {rank}:\n{problem}"
