"""The registration with torch, whatever is imported first.

``import headrace.torch`` before ``import torch`` failed: torch's import looks for the function that
registers the backend in `headrace.torch`, of which only the beginning had run.
"""

import subprocess
import sys

import pytest

from tests.conformance.launch import environment
from tests.waiting import JOB_S

SAMPLED = pytest.mark.sampled(3, of="imports of torch")

ORDERS = (
    "import headrace.torch",
    "import headrace.torch, torch",
    "import torch, headrace.torch",
    "import headrace, torch, headrace.torch",
    "import headrace.collectives.run.torch.create, headrace.torch",
)


@SAMPLED
@pytest.mark.parametrize("autoload", ["1", "0"])
@pytest.mark.parametrize("order", ORDERS)
def test_any_order_of_imports_registers_the_backend(order: str, autoload: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{order}\nimport torch\nassert 'headrace' in torch.distributed.Backend.backend_list\n"
            "headrace.torch.step(), headrace.torch.empty(2), headrace.torch.register()",
        ],
        env=environment(TORCH_DEVICE_BACKEND_AUTOLOAD=autoload),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@SAMPLED
def test_the_registration_loads_neither_settings_nor_the_executor() -> None:
    """`import torch` took 80 ms longer by the settings, which find every capability's folder."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, torch; print(*sys.modules)"],
        env=environment(TORCH_DEVICE_BACKEND_AUTOLOAD="1"),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=True,
    ).stdout.split()
    assert "headrace.registration" in loaded
    for module in ("headrace.settings", "headrace.kinds", "headrace._native", "headrace.artifact"):
        assert module not in loaded


LEAVES = """
import atexit
import torch.distributed as dist

def leave():
    dist.barrier()
    dist.destroy_process_group()
    print("left")

atexit.register(leave)
dist.init_process_group("headrace", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()
"""


@SAMPLED
def test_what_a_script_does_at_its_end_may_make_calls() -> None:
    """Groups were closed before a handler that was registered before the first one was made."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVES],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=True,
    )
    assert done.stdout.split() == ["left"], done.stderr
