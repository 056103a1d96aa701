"""A trainer's cache: rows with their optimizer's state in slots, on the module's device.

Threads work on it without locks: a decision gives a slot to one row at a time, and the rows that
one thread reads or writes are in other slots than those of the others.
"""

from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.embeddings.tables import TableGroup
from headrace.staging import CudaStaging, upload


def indices(numbers: NDArray[np.generic], device: torch.device) -> Tensor:
    """Return numbers on a device, as torch's indices."""
    return torch.from_numpy(numbers.astype(np.int64, copy=False)).to(device)


class RowCache:
    """Rows of one group in slots.

    Parameters
    ----------
    slots : rows that there is room for.
    device : of the module that reads them.

    Attributes
    ----------
    rows : [slots, width].
    """

    def __init__(self, group: TableGroup, slots: int, device: torch.device) -> None:
        self.group = group
        self.rows = torch.zeros(
            slots, group.width, dtype=getattr(torch, group.dtype), device=device
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return self.rows.nbytes

    def numbers(self, slots: Tensor) -> Tensor:
        """Return copies of what the model reads of rows: [rows, dim]."""
        return self.rows[:, : self.group.dim].index_select(0, slots)

    def read(self, slots: Tensor) -> Tensor:
        """Return copies of rows: [rows, width]."""
        return self.rows.index_select(0, slots)

    def write(self, slots: Tensor, rows: Tensor) -> None:
        """Overwrite rows, of distinct slots."""
        self.rows.index_copy_(0, slots, rows)


class HostCopies:
    """Copies between a device and host memory by one thread, on a stream of its own if asked.

    On the CPU tensors are host memory, and nothing is copied.

    Parameters
    ----------
    own_stream : whether `beside` works on a stream of its own: for threads beside the training
        thread.
    """

    def __init__(self, device: torch.device, *, own_stream: bool) -> None:
        self._device = device
        self._staging = CudaStaging(device) if device.type == "cuda" else None
        self._own_stream = own_stream

    @contextmanager
    def beside(self) -> Generator[None]:
        """Work of this thread, complete on the device at the end.

        What the thread reads is complete at the beginning: others end their work by `complete`.
        """
        if self._staging is None:
            yield
        elif not self._own_stream:
            yield
            self.complete()
        else:
            with self._staging.beside(self._staging.mark()):
                yield
                self.complete()

    def complete(self) -> None:
        """Wait until the device has done all work of the current stream."""
        if self._staging is not None:
            self._staging.mark().synchronize()

    def to_host(self, tensor: Tensor) -> NDArray[np.generic]:
        """Return the numbers of a contiguous tensor in host memory."""
        if self._staging is None:
            return tensor.numpy()
        host, arrival = self._staging.to_host(tensor)
        arrival.synchronize()
        return host.numpy()

    def room(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """Return host memory that `to_device` copies from."""
        pinned = self._staging is not None
        return torch.empty(rows, width, dtype=dtype, device="cpu", pin_memory=pinned)

    def from_host(self, array: NDArray[np.generic]) -> Tensor:
        """Return a copy of an array on the device, or on the CPU the array itself."""
        if self._staging is None:
            return torch.from_numpy(array if array.flags.writeable else array.copy())
        dtype = getattr(torch, array.dtype.name)
        host = torch.empty(array.shape, dtype=dtype, device="cpu", pin_memory=True)
        host.numpy()[...] = array
        return upload(host, self._device)

    def to_device(self, host: Tensor) -> Tensor:
        """Return a tensor on the device, in the order of the current stream."""
        return upload(host, self._device)
