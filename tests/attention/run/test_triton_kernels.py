"""Triton's kernels in its interpreter against NumPy, and compiled; no device has run them here."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headrace.attention.plan.formats import LayerHeads
from headrace.attention.run.membership import HeadMembership
from headrace.attention.run.rows import StoredRows
from headrace.attention.run.store import StorePart
from tests.attention.run.triton_cases import CASES
from tests.tiers import Sample, case

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton comes with PyTorch for CUDA"
)
ROOT = Path(__file__).parents[3]
TIMEOUT_S = 1800
"""Of a process: all cases take minutes in the interpreter, and many more beside other work."""
SHARED_BYTES = 99 * 1024
"""Of a block of threads, on the devices that have least of the architectures from 8.0 on."""


def lines(*arguments: str, **variables: str) -> list[Any]:
    """Return what the script of the cases prints in a process of its own."""
    command = [sys.executable, "-m", "tests.attention.run.triton_cases", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.sampled(1, of="whole jobs")
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_every_format_and_shape_agrees_with_numpy(sample: Sample) -> None:
    numbers = sample.of(range(len(CASES)), 1)
    *differences, (_, nan_heads) = lines(*map(str, numbers), TRITON_INTERPRET="1")
    assert [name for name, _ in differences] == [CASES[number].name for number in numbers]
    for number, (name, difference) in zip(numbers, differences, strict=True):
        with case(name):
            assert difference < CASES[number].bound
    assert nan_heads == [True, False]


def test_kernels_are_launched_for_many_requests_and_on_the_device_of_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A grid had the heads of all requests where CUDA has room for 65,535; and of several devices
    it was the current one's, whatever layer it was."""
    from headrace.attention.run import triton_decode

    batch, dim = 70_000, 16
    devices: list[torch.device] = []
    grids: list[tuple[int, ...]] = []

    @contextmanager
    def device_of(tensor: torch.Tensor) -> Iterator[None]:
        devices.append(tensor.device)
        yield
        devices.pop()

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            assert devices == [torch.device("cpu")]
            grids.append(grid)
            return lambda *_, **__: None

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    kernels = SimpleNamespace(score_kernel=Kernel(), value_kernel=Kernel(), join_kernel=Kernel())
    monkeypatch.setattr(triton_decode, "_KERNELS", kernels)
    rows = StoredRows(format=None, codes=torch.empty(batch, 1, 1, dim), scales=None, capacity=1)
    part = StorePart(tokens=1, keys=rows, values=rows)
    store: Any = SimpleNamespace(key_heads=1, tokens=1, parts=lambda: iter([part]))
    heads = LayerHeads(query_heads=1, key_value_heads=1, dim=dim)
    membership = HeadMembership.over_all_keys(np.zeros((batch, 1), np.int32), heads)
    triton_decode.attend_parts(torch.empty(batch, 1, 1, dim), store, membership, 1.0, None)
    assert [grid[0] for grid in grids] == [batch] * 3
    assert all(size <= 65_535 for grid in grids for size in grid[1:])


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_every_kernel_compiles_within_the_shared_memory_of_devices(tmp_path: Path) -> None:
    kernels = lines(TRITON_CACHE_DIR=str(tmp_path))
    assert len(kernels) == 3 * 7
    for name, shared_bytes in kernels:
        with case(name):
            assert shared_bytes <= SHARED_BYTES
