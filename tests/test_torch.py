"""`headrace.torch.init_from_torchrun`: the group that frameworks take, made once and by name."""

import subprocess
import sys
from datetime import timedelta

import pytest

from headrace.errors import InputError
from headrace.torch import init_from_torchrun
from tests.conformance.launch import environment, free_port
from tests.waiting import JOB_S

SCRIPT = """
from datetime import timedelta
import torch.distributed as dist
from headrace.errors import InputError
from headrace.torch import init_from_torchrun

init_from_torchrun(timeout=timedelta(seconds=50))
group = dist.group.WORLD
init_from_torchrun()
assert dist.group.WORLD is group
print(dist.get_backend(), dist.get_rank(), dist.get_world_size())
dist.destroy_process_group()
dist.init_process_group("gloo")
try:
    init_from_torchrun()
except InputError as error:
    print(error)
dist.destroy_process_group()
"""


@pytest.mark.sampled(3, of="imports of torch")
def test_a_second_call_keeps_the_group_and_a_group_of_another_backend_is_refused() -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        env=environment(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", **address),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "headrace 0 1"
    assert "default group of" in second
    assert "gloo" in second
    assert "before the framework makes its first object" in second


def test_outside_torchrun_the_error_names_the_variables_and_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(InputError, match="RANK and WORLD_SIZE are not set, needs torchrun"):
        init_from_torchrun(timedelta(seconds=1))
