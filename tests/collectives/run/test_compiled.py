"""Collectives in functions that torch.compile compiles.

``torch.compile(DDP(m))`` ended in a dynamo error about the member `_caller`, as did a compiled
broadcast, all_gather or barrier: after a graph break dynamo compiled the methods of the group.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.collectives.run import compiled_job
from tests.conformance.launch import environment, outputs, ranks, results
from tests.waiting import JOB_S


@pytest.mark.slow
def test_compiled_calls_return_what_eager_ones_do() -> None:
    script = Path(compiled_job.__file__)
    with ranks(compiled_job.RANKS, script, "headrace") as processes:
        texts = outputs(processes)
    for rank, found in enumerate(results(texts)):
        wrong = {k: v for k, v in found.items() if v}
        assert not wrong, f"rank {rank}:\n" + "\n".join(f"{k}: {v}" for k, v in wrong.items())


LOADED = """
import sys, torch, headrace.torch, headrace.collectives.run.torch.create
print([name for name in sys.modules if name.startswith("torch._dynamo")])
"""


@pytest.mark.sampled(3, of="imports of torch")
def test_a_group_loads_no_dynamo() -> None:
    """It takes seconds, and most jobs compile nothing."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=True,
    )
    assert done.stdout.strip() == "[]"
