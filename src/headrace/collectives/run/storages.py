"""Memory of tensors while the executor uses it.

A storage that is held outlives its tensor, which may get another one (`set_`, or an assignment to
`data`). Resizing a storage cannot be prevented: it moves the bytes and frees the memory that the
executor goes on to use. It is found when the call has ended, before results are copied.
"""

from collections.abc import Callable, Iterable

import torch

from headrace.errors import InputError


def guarded(
    tensors: Iterable[torch.Tensor], after: Callable[[], None] | None
) -> Callable[[], None]:
    """Hold the storages of `tensors`, and return what checks them and then does `after`.

    What is returned raises InputError if a storage has been resized by then. One that is back at
    its old address with its old size is not noticed.
    """
    storages = ((tensor, tensor.untyped_storage()) for tensor in tensors)
    held = [(tensor, s, s.data_ptr(), s.nbytes()) for tensor, s in storages]

    def check() -> None:
        for tensor, storage, address, size in held:
            if storage.data_ptr() != address or storage.nbytes() != size:
                raise InputError(
                    f"the storage of a {tensor.dtype} tensor of shape {tuple(tensor.shape)} was "
                    f"resized from {size} to {storage.nbytes()} bytes while a call that uses it "
                    "was under way: its result is lost, and freed memory was read or written; "
                    "wait for the work first"
                )
        if after is not None:
            after()

    return check
