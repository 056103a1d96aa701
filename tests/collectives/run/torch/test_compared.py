"""Calls that do not match, under TORCH_DISTRIBUTED_DEBUG=DETAIL.

The bug: of three ranks that called reduce, broadcast, gather or scatter with different sizes or
roots one raised, and the others, which only send, returned as if all was well, or waited until
their timeout. torch compares the calls of other backends beforehand, and raises at every rank.
"""

from pathlib import Path

import numpy as np
import pytest

from headrace.collectives.run.torch.compared import mismatch
from tests.collectives.run.torch import compared_job
from tests.conformance.launch import outputs, ranks, results


@pytest.mark.sampled(1)
@pytest.mark.parametrize("asking", ["012", "1"])
def test_every_rank_raises(asking: str) -> None:
    script = Path(compared_job.__file__)
    with ranks(compared_job.RANKS, script, *asking) as processes:
        texts = outputs(processes)
    by_rank = results(texts)
    for name in compared_job.MISMATCHES:
        errors = [outcomes[name] for outcomes in by_rank]
        assert "Detected mismatch between collectives on ranks" in errors[0], (name, texts)
        assert errors == errors[:1] * compared_job.RANKS, name
    for outcomes in by_rank:  # nothing was moved: the group goes on
        assert outcomes["afterwards"] == ""
        assert outcomes["numbers"] == "0 6"  # comparisons and refused calls have no number


def test_a_call_is_said_with_its_ranks() -> None:
    none = np.zeros((3, 2, 3), dtype=np.int64)
    assert mismatch([b"a", b"a", b"a"], ["barrier"] * 3, none) == ""
    text = mismatch([b"a", b"b", b"a"], ["barrier", "broadcast from rank 0", "barrier"], none)
    assert text.startswith("Ranks [0, 2] call barrier; ranks [1] call broadcast from rank 0: ")


def test_sizes_of_an_exchange_are_compared_pair_by_pair() -> None:
    sizes = np.arange(9).reshape(3, 3)  # sizes[a, b]: from a to b
    exchanged = np.stack([sizes, sizes.T], axis=1)
    assert mismatch([b"a"] * 3, ["all_to_all"] * 3, exchanged) == ""
    exchanged[2, 1, 1] += 1  # what rank 2 receives from rank 1
    text = mismatch([b"a"] * 3, ["all_to_all"] * 3, exchanged)
    assert "rank 1 sends 5 bytes to rank 2, which receives 6 from it" in text
