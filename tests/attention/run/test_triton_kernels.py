"""Triton's kernels in its interpreter against NumPy, and compiled; no device has run them here."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.timeout(TIMEOUT_S + 60)
def test_every_format_and_shape_agrees_with_numpy(sample: Sample) -> None:
    numbers = sample.of(range(len(CASES)), 3)
    *differences, (_, nan_heads) = lines(*map(str, numbers), TRITON_INTERPRET="1")
    assert [name for name, _ in differences] == [CASES[number].name for number in numbers]
    for number, (name, difference) in zip(numbers, differences, strict=True):
        with case(name):
            assert difference < CASES[number].bound
    assert nan_heads == [True, False]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_every_kernel_compiles_within_the_shared_memory_of_devices(tmp_path: Path) -> None:
    kernels = lines(TRITON_CACHE_DIR=str(tmp_path))
    assert len(kernels) == 3 * 7
    for name, shared_bytes in kernels:
        with case(name):
            assert shared_bytes <= SHARED_BYTES
