"""Copies of one call between the tensors' device and host memory, for each kind of device."""

from collections.abc import Sequence
from typing import Protocol

import torch

from headrace.errors import InputError


class Copies(Protocol):
    """Copies of one call between its tensors' device and host memory.

    Made when the call begins: all copies come after earlier work of the calling thread's current
    stream.

    Attributes
    ----------
    devices : the tensors' device, for the future of the call.
    """

    devices: list[torch.device]

    def to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return completed, contiguous copies in host memory."""
        ...

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return contiguous host memory of the size of `tensor`, for its new values."""
        ...

    def to_device(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Begin to copy the second of every pair to the first, in any thread."""
        ...

    def wait(self) -> None:
        """Order later work of the current stream after `to_device`'s copies."""
        ...

    def done(self) -> bool:
        """Return whether `to_device`'s copies are complete."""
        ...


def copies_for(tensor: torch.Tensor) -> Copies | None:
    """Return the copies of a call on `tensor`'s device; None if it is in host memory.

    Raises
    ------
    InputError : the backend does not support the device.
    """
    if tensor.is_cpu:
        return None
    if tensor.is_cuda:
        from headrace.collectives.run.torch.cuda import CudaCopies  # only where there is a GPU

        return CudaCopies(tensor.device)
    raise InputError(
        f"a tensor is on {tensor.device}; the headrace backend supports CPU tensors, and CUDA "
        "tensors through host memory: pass tensor.cpu(), or give that device another backend, "
        f'as in init_process_group("cpu:headrace,{tensor.device.type}:...")'
    )
