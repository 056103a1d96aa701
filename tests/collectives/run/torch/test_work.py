"""Storages that are resized, or leave their tensors, while a call uses them.

The executor went on with the freed memory, and the call was said to have gone well.
"""

import ctypes

import pytest
import torch

from headrace.collectives.run.torch.work import guarded
from headrace.errors import InputError


def test_nothing_is_wrong_with_storages_that_stay() -> None:
    done: list[int] = []
    tensors = [torch.ones(3), torch.ones(0), torch.ones(4, 4)[1:, ::2]]
    guarded(tensors, lambda: done.append(1))()
    guarded([], None)()
    assert done == [1]


@pytest.mark.parametrize("size", [0, 8, 1 << 20])
def test_a_resized_storage_is_an_error_that_names_the_tensor(size: int) -> None:
    done: list[int] = []
    tensor = torch.ones(4, 5)
    check = guarded([torch.ones(2), tensor[1:]], lambda: done.append(1))
    tensor.untyped_storage().resize_(size)
    with pytest.raises(InputError, match=rf"shape \(3, 5\) was resized from 80 to {size} bytes"):
        check()
    assert not done, "results must not be copied to memory that may be gone"


def test_a_tensor_may_get_another_storage() -> None:
    tensor = torch.ones(4)
    address = tensor.data_ptr()
    check = guarded([tensor], None)
    tensor.data = torch.zeros(4)
    assert tensor.data_ptr() != address
    assert ctypes.string_at(address, 16) == torch.ones(4).numpy().tobytes()
    check()
