"""The backend as torch's users call it: every call, against references each rank can compute.

Starting torch is what takes time, so a job of each size runs the whole sample once
(`torch_sample.py`; its checks are in `sample`), and the test here reads what became of each check.
"""

from pathlib import Path

import pytest

from tests.conformance import torch_sample
from tests.conformance.launch import outputs, ranks, results

SCRIPT = Path(torch_sample.__file__)

# What torch builds on the collectives is checked with 4 ranks, the collectives with others, too;
# with a double of a GPU both.
JOBS: dict[str, tuple[int, list[str], dict[str, str]]] = {
    "1": (1, ["--quick"], {}),
    "2": (2, ["--quick"], {}),
    "3": (3, ["--quick"], {}),
    "4": (4, [], {}),
    "2-staged": (2, ["--staged"], {}),
    "3-threads": (3, ["--quick"], {"HEADRACE_THREADS": "3"}),
    "3-threads-tcp": (
        3,
        ["--quick"],
        {"HEADRACE_THREADS": "3", "HEADRACE_CHANNELS": "2", "HEADRACE_SHARED_MEMORY": "off"},
    ),
}


def expected(name: str) -> list[str]:
    left_out = torch_sample.SLOW if "--quick" in JOBS[name][1] else []
    return [check.__name__ for check in torch_sample.CHECKS if check not in left_out]


@pytest.mark.parametrize(
    "name",
    [name if name == "4" else pytest.param(name, marks=pytest.mark.sampled(1)) for name in JOBS],
)
def test_torch(name: str) -> None:
    count, options, settings = JOBS[name]
    with ranks(count, SCRIPT, *options, **settings) as processes:
        texts = outputs(processes)
        for rank, process in enumerate(processes):
            assert process.returncode == 0, f"rank {rank} said:\n{texts[rank]}"
    for rank, text in enumerate(texts):
        assert "leaked" not in text, f"rank {rank} said:\n{text}"
    wrong = [
        f"{check}: rank {rank}:\n{problem}"
        for rank, found in enumerate(results(texts))
        for check in expected(name)
        if (problem := found.get(check, "did not get to it"))
    ]
    assert not wrong, "\n".join(wrong)
