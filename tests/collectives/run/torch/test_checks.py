"""Argument checks of the process group."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from headrace.collectives.run.torch import checks


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(list(torch.tensor([1, 3])), id="tensors of one element"),
        pytest.param(np.array([1, 3]), id="an array"),
        pytest.param(list(np.array([1, 3], np.uint8)), id="narrow integers"),
        pytest.param(torch.Size([1, 3]), id="a torch.Size"),
    ],
)
def test_split_sizes_become_plain_integers(sizes: Any) -> None:
    # An all-to-all with sizes in tensors used to add to them, and wrote outside of its memory;
    # torch's own groups take them.
    checked = checks.splits("input_split_sizes", torch.zeros(4, 1000), sizes, 2)
    assert checked == [1, 3]
    assert [type(size) for size in checked] == [int, int]


@pytest.mark.parametrize("sizes", [(), [], np.array([], np.int64)])
def test_without_split_sizes_the_rows_are_divided_evenly(sizes: Sequence[int]) -> None:
    assert checks.splits("input_split_sizes", torch.zeros(4), sizes, 2) == [2, 2]


def test_a_split_size_that_is_no_integer_is_refused() -> None:
    with pytest.raises(TypeError, match="integer"):
        checks.splits("input_split_sizes", torch.zeros(4), [1.0, 3.0], 2)  # pyright: ignore[reportArgumentType]
