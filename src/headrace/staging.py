"""Copies between the memory of a GPU and of the host, in the order of streams.

Pinned buffers are those of torch's caching host allocator: it keeps freed buffers for the next use
(sizes are rounded up to powers of two), and reuses none that a copy still reads. Codecs move single
values by `download`, in which a thread waits for the device, and `upload`.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Protocol

import torch
from torch import Tensor


def download(values: Tensor) -> Tensor:
    """Return values in host memory, when the device has computed them: this thread waits."""
    return values.cpu()


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Return values of the CPU on a device, without waiting for the copy."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


class Arrival(Protocol):
    """Event of a device, such as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Return whether it has happened."""
        ...

    def synchronize(self) -> None:
        """Wait until it has happened."""
        ...


class Staging(Protocol):
    """Copies between host memory and a device, and the order of threads' work there.

    Attributes
    ----------
    devices : the device, for the futures of calls.
    """

    devices: list[int | str | torch.device]

    def room(self, like: Tensor) -> Tensor:
        """Return contiguous host memory of a tensor's shape and type."""
        ...

    def to_host(self, tensor: Tensor) -> tuple[Tensor, Arrival]:
        """Begin to copy a tensor after earlier work of the current stream.

        Returns the copy, and the event before which it is not to be read.
        """
        ...

    def to_device(self, host: Tensor, tensor: Tensor) -> None:
        """Copy memory of `room` to a tensor, in the order of the current stream."""
        ...

    def mark(self) -> Arrival:
        """Return the event that all work of the current stream until now is complete."""
        ...

    def follow(self, mark: Arrival) -> None:
        """Order later work of the current stream after a mark."""
        ...

    @contextmanager
    def beside(self, mark: Arrival) -> Generator[None]:
        """Work in this thread on a stream of its own, ordered after a mark."""
        ...

    def keep(self, tensor: Tensor) -> None:
        """Do not reuse a tensor's memory before the current stream's work on it is complete."""
        ...


class CudaStaging:
    """Staging of one GPU.

    What is allocated in `beside` may be used by the stream that made the mark when it follows a
    mark made at the end of `beside`, and freed at any time after: the next use of the memory in
    `beside` is ordered after the next mark.
    """

    def __init__(self, device: torch.device) -> None:
        self.devices: list[int | str | torch.device] = [device]
        self._device = device
        self._side: torch.cuda.Stream | None = None

    def room(self, like: Tensor) -> Tensor:
        """Return pinned memory of a tensor's shape and type."""
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)

    def to_host(self, tensor: Tensor) -> tuple[Tensor, Arrival]:
        """Begin to copy on the current stream; see `Staging`."""
        host = self.room(tensor)
        host.copy_(tensor, non_blocking=True)
        return host, self.mark()

    def to_device(self, host: Tensor, tensor: Tensor) -> None:
        """Begin to copy on the current stream."""
        tensor.copy_(host, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        """Return an event of the current stream; waiting for it leaves the processor to others."""
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def follow(self, mark: Arrival) -> None:
        """Let the current stream wait for a mark."""
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(mark)

    @contextmanager
    def beside(self, mark: Arrival) -> Generator[None]:
        """Work on the side stream; see `Staging`."""
        self._side = self._side or torch.cuda.Stream(self._device)
        with torch.cuda.device(self._device), torch.cuda.stream(self._side):
            self.follow(mark)
            yield

    def keep(self, tensor: Tensor) -> None:
        """Record the current stream with the allocator."""
        tensor.record_stream(torch.cuda.current_stream(self._device))


def staging_of(device: torch.device) -> Staging | None:
    """Return the staging of a device, one for all callers; None for the CPU, which needs none."""
    return None if device.type == "cpu" else _cuda_staging(device)


@cache
def _cuda_staging(device: torch.device) -> Staging:
    return CudaStaging(device)
