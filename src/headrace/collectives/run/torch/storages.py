"""Protection of tensors' memory while the executor uses it.

A storage that is held outlives its tensor, which may get another one (`set_`, or an assignment to
`data`). Resizing a storage cannot be prevented: it moves the bytes and frees the memory that the
executor still uses. It is detected when the call has ended, before results are copied.
"""

from collections.abc import Callable, Iterable

import torch

from headrace.errors import InputError


def guarded(
    tensors: Iterable[torch.Tensor], after: Callable[[], None] | None
) -> Callable[[], None]:
    """Hold the storages of `tensors`; returns a function that checks them and then calls `after`.

    That function raises InputError if a storage was resized. One that is back at its old address
    with its old size is not detected.
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
