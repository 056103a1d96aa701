"""Tensors that are not on the CPU: on a double of such a device, and on a GPU if there is one.

One GPU is enough: its ranks share it.
"""

import subprocess
from pathlib import Path

import pytest
import torch

from tests.conformance import device_sample, warm
from tests.conformance.launch import environment, free_port, outputs, ranks
from tests.waiting import JOB_S

SCRIPT = Path(device_sample.__file__)

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("count", "device", "backend"),
    [
        (2, "cpu", "headrace"),
        (3, "cpu", "cpu:headrace,cuda:gloo"),
        pytest.param(1, "cuda", "headrace", marks=gpu),
        pytest.param(2, "cuda", "headrace", marks=gpu),
        pytest.param(3, "cuda", "cpu:gloo,cuda:headrace", marks=gpu),
    ],
)
def test_staged_tensors(count: int, device: str, backend: str) -> None:
    with ranks(count, SCRIPT, device, backend) as processes:
        for process, text in zip(processes, outputs(processes), strict=True):
            assert process.returncode == 0, text


# Everything about one process that asks for backends, one after another, and gets groups or errors.
ASK = """
import sys, torch, torch.distributed as dist, headrace.torch
for backend in sys.argv[1:]:
    try:
        dist.init_process_group(backend)
    except ValueError as error:
        print(backend, "refused:", error)
    else:
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        cpu = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__
        print(backend, "served by", cpu, "on", *[d.type for d in dist.group.WORLD._device_types])
        try:
            dist.group.WORLD._get_backend(torch.device("cuda"))
        except RuntimeError as error:
            print("no cuda:", error)
        dist.destroy_process_group()
"""


def said(*backends: str) -> list[str]:
    alone = environment(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), RANK="0", WORLD_SIZE="1"
    )
    done = subprocess.run(
        warm.command("-c", ASK, *backends),
        env=alone,
        text=True,
        capture_output=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@no_gpu
def test_without_a_gpu_what_cannot_be_served_is_refused_and_the_rest_works() -> None:
    lines = said("cuda:headrace", "cpu:gloo,cuda:headrace", "xpu:headrace", "headrace")
    for line, backend in zip(lines, ("cuda:headrace", "cpu:gloo,cuda:headrace"), strict=False):
        assert line.startswith(f"{backend} refused: the headrace backend does not support CUDA")
        assert "no GPU" in line or "without CUDA" in line
        assert 'init_process_group("headrace")' in line
    assert lines[2].startswith("xpu:headrace refused: the headrace backend does not support xpu")
    assert lines[3] == "headrace served by HeadraceGroup on cpu"
    assert lines[4].startswith("no cuda: the headrace backend does not support CUDA tensors here")


def test_backends_beside_headrace_get_what_is_theirs() -> None:
    lines = said("cpu:headrace,cuda:gloo", "cuda:gloo,cpu:headrace", "cpu:headrace")
    for line, backend in zip(
        lines, ("cpu:headrace,cuda:gloo", "cuda:gloo,cpu:headrace"), strict=False
    ):
        assert line.startswith(f"{backend} served by HeadraceBackend on ")
        assert set(line.split(" on ")[1].split()) == {"cpu", "cuda"}
    assert lines[2].startswith("cpu:headrace served by HeadraceGroup on cpu")
