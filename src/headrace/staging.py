"""Copies between the memory of a GPU and of the host, in the order of streams.

Pinned buffers are those of torch's caching host allocator: it keeps freed buffers for the next use
(sizes are rounded up to powers of two), and reuses none that a copy still reads. Codecs move single
values by `download`, in which a thread waits for the device, and `upload`.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

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


class CudaStaging:
    """Copies between host memory and a GPU, and the order of threads' work there.

    What is allocated in `beside` may be used by the stream that made the mark when it follows a
    mark made at the end of `beside`, and freed at any time after: the next use of the memory in
    `beside` is ordered after the next mark.

    Attributes
    ----------
    devices : the device, for the futures of calls.
    """

    def __init__(self, device: torch.device) -> None:
        self.devices: list[int | str | torch.device] = [device]
        self._device = device
        self._side: torch.cuda.Stream | None = None

    def room(self, like: Tensor) -> Tensor:
        """Return contiguous pinned memory of a tensor's shape and type."""
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)

    def to_host(self, tensor: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        """Begin to copy a tensor after earlier work of the current stream.

        Returns the copy, and the event before which it is not to be read.
        """
        host = self.room(tensor)
        host.copy_(tensor, non_blocking=True)
        return host, self.mark()

    def to_device(self, host: Tensor, tensor: Tensor) -> None:
        """Copy memory of `room` to a tensor, in the order of the current stream."""
        tensor.copy_(host, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        """Return the event that all work of the current stream until now is complete.

        Waiting for it leaves the processor to others.
        """
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def follow(self, mark: torch.cuda.Event) -> None:
        """Order later work of the current stream after a mark."""
        torch.cuda.current_stream(self._device).wait_event(mark)

    @contextmanager
    def beside(self, mark: torch.cuda.Event) -> Generator[None]:
        """Work in this thread on a stream of its own, ordered after a mark."""
        self._side = self._side or torch.cuda.Stream(self._device)
        with torch.cuda.device(self._device), torch.cuda.stream(self._side):
            self.follow(mark)
            yield

    def keep(self, tensor: Tensor) -> None:
        """Do not reuse a tensor's memory before the current stream's work on it is complete."""
        tensor.record_stream(torch.cuda.current_stream(self._device))


@cache
def staging_of(device: torch.device) -> CudaStaging | None:
    """Return the staging of a device, one for all callers; None for the CPU, which needs none."""
    return None if device.type == "cpu" else CudaStaging(device)
