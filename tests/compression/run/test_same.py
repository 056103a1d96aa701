"""Values of ranks are compared by one all-gather; a rank that is missing is named."""

import os
from pathlib import Path

import pytest
import torch.distributed as dist

from headrace.compression.errors import CompressionError, ExchangeError
from headrace.compression.run.same import require_same
from headrace.errors import CommunicationError
from tests.conformance.launch import all_succeed

RANKS = 3
JOB = "import sys; from tests.compression.run.test_same import compare; compare(*sys.argv[1:])"


def compare(store: str) -> None:
    """Compare values on the rank that RANK names, and lose the last one."""
    rank, ranks = int(os.environ["RANK"]), RANKS
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    require_same({"levels": "equal"}, "All need the same.")
    values = {"models": "equal", "rates": [0.1] * (100 + rank // 2)}
    with pytest.raises(CommunicationError, match=r"^the rates of ranks differ: ranks 0, 1 have"):
        require_same(values, "All need the same.")
    with pytest.raises(CompressionError, match=r"rank 0 has 0; rank 1 has 1; rank 2 has 2\. Use"):
        require_same({"seeds": rank}, "Use one.", error=CompressionError)
    if rank == ranks - 1:
        os._exit(0)  # closes its connections; no report
    with pytest.raises(ExchangeError, match=r"^comparison of levels: rank 2 did not") as caught:
        require_same({"levels": "equal"}, "All need the same.")
    assert caught.value.missing == (ranks - 1,)
    dist.destroy_process_group()


def test_a_rank_that_is_missing_from_a_comparison_is_named(tmp_path: Path) -> None:
    """The error was Gloo's own, with an address on one rank and none on the others."""
    all_succeed(JOB, RANKS, str(tmp_path / "store"))
