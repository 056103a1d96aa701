"""Callbacks of futures that begin calls and wait for them.

A wait in a callback never ended, past any deadline: the one thread that completed futures waited
for itself. torch's PowerSGD hook is built that way.
"""

from functools import cache
from pathlib import Path

import pytest

from tests.collectives.run.torch import callbacks_job
from tests.conformance.launch import outputs, ranks, results


@cache
def job() -> list[dict[str, str]]:
    """By rank: check -> what went wrong ("" for nothing)."""
    script = Path(callbacks_job.__file__)
    with ranks(callbacks_job.RANKS, script, GLOO_SOCKET_IFNAME="lo") as processes:
        return results(outputs(processes))


@pytest.mark.parametrize("check", [check.__name__ for check in callbacks_job.CHECKS] + ["threads"])
def test_callbacks(check: str) -> None:
    for rank, found in enumerate(job()):
        assert not found[check], f"rank {rank}:\n{found[check]}"
