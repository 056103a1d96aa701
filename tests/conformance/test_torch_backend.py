"""What torch's users see of the backend: every call, against references each rank can compute.

Starting torch is what takes time, so a job of each size runs the whole sample once
(`torch_sample.py`; its checks are in `sample`) and the tests here read what became of each.
"""

import json
from functools import cache
from pathlib import Path

import pytest

from tests.conformance import torch_sample
from tests.conformance.launch import outputs, ranks

SCRIPT = Path(torch_sample.__file__)
DEADLINE_S = 240
pytestmark = pytest.mark.timeout(DEADLINE_S + 30)

# What torch builds on the collectives is checked with 4 ranks, the collectives with others, too.
JOBS = {1: ["--quick"], 2: ["--quick"], 3: ["--quick"], 4: []}


def expected(count: int) -> list[str]:
    left_out = torch_sample.SLOW if JOBS[count] else []
    return [check.__name__ for check in torch_sample.CHECKS if check not in left_out]


@cache
def job(count: int) -> list[dict[str, str]]:
    """By rank: check -> what went wrong ("" for nothing)."""
    with ranks(count, SCRIPT, *JOBS[count]) as processes:
        texts = outputs(processes, DEADLINE_S)
        for rank, process in enumerate(processes):
            assert process.returncode == 0, f"rank {rank} said:\n{texts[rank]}"
    found = []
    for rank, text in enumerate(texts):
        lines = [line for line in text.splitlines() if line.startswith("RESULTS ")]
        assert lines, f"rank {rank} said:\n{text}"
        assert "leaked" not in text, f"rank {rank} said:\n{text}"
        found.append(json.loads(lines[-1].removeprefix("RESULTS ")))
    return found


@pytest.mark.parametrize(
    ("count", "check"), [(count, check) for count in JOBS for check in expected(count)]
)
def test_torch(count: int, check: str) -> None:
    for rank, results in enumerate(job(count)):
        assert check in results, f"rank {rank} did not get to {check}"
        assert not results[check], f"rank {rank}:\n{results[check]}"
