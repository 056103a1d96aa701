"""Which devices the backend is registered for, and what finding out costs.

The bug: the backend was registered for CUDA everywhere. Without a GPU torch's sharded tensors and
checkpoints moved the tensors of CPU programs to CUDA: "Found no NVIDIA driver". Asking torch for a
GPU would have been no mend: it initialises CUDA inside of `import torch`, and a process that forks
afterwards cannot use CUDA in the child.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headrace.accelerators import has_gpu
from tests.conformance.launch import all_succeed, free_port
from tests.waiting import JOB_S

built = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="torch has no CUDA")

IMPORTING = """
import os, sys
import torch
from torch import distributed as dist
import headrace.torch

devices = dist.Backend.backend_capability["headrace"]
assert devices == (["cpu", "cuda"] if sys.argv[1] == "True" else ["cpu"]), devices
assert not torch.cuda.is_initialized()
# cuInit opens the driver's device files
opened = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if
          os.path.exists(f"/proc/self/fd/{fd}")]
assert not [path for path in opened if "nvidia" in path], opened
child = os.fork()
if child == 0:
    os._exit(int(torch.cuda._is_in_bad_fork()))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@built
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ((), False),
        (("null", "nvidiactl", "nvidia-uvm"), False),
        (("nvidiactl", "nvidia0"), True),
        (("nvidia12",), True),
        (("dxg",), True),
    ],
)
def test_device_files_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], expected: bool
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in files:
        (tmp_path / name).touch()
    assert has_gpu(tmp_path) is expected


@built
@pytest.mark.parametrize(("visible", "expected"), [("", False), ("-1", False), ("0", True)])
def test_hidden_devices_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, expected: bool
) -> None:
    (tmp_path / "nvidia0").touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert has_gpu(tmp_path) is expected


@pytest.mark.sampled(3, of="imports of torch")
def test_registering_does_not_initialise_cuda() -> None:
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTING, str(has_gpu())],
        env=dict(os.environ),
        timeout=JOB_S,
        check=True,
    )


SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec

dist.init_process_group("headrace")
rank = dist.get_rank()
placements = ["rank:0/cpu", "rank:1/cpu"]
shards = sharded_tensor.rand(ChunkShardingSpec(dim=0, placements=placements), 4, 4)
gathered = torch.zeros(4, 4) if rank == 0 else None
shards.gather(out=gathered)
if rank == 0:
    assert torch.equal(gathered[:2], shards.local_tensor())
dist.destroy_process_group()
"""


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_sharded_tensors_are_gathered_without_a_gpu() -> None:
    port = str(free_port())
    all_succeed(SHARDED, 2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2")
