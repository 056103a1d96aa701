"""Copies of one call between the memory of a GPU and of the host."""

from collections.abc import Sequence
from functools import cache

import torch

from headrace.collectives.run.torch.buffers import check_writable
from headrace.errors import InputError
from headrace.staging import CudaStaging


@cache
def _staging(device: torch.device) -> CudaStaging:
    """Return the staging of all calls: no computation is on its stream, for which copies wait."""
    return CudaStaging(device)


class CudaCopies:
    """Copies of one call between its tensors' device and pinned host memory.

    Made when the call begins: all copies come after earlier work of the calling thread's current
    stream.

    Parameters
    ----------
    device : with its index.

    Attributes
    ----------
    devices : the tensors' device, for the future of the call.

    Raises
    ------
    InputError : the current stream is being captured in a CUDA graph.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            if torch.cuda.is_current_stream_capturing():
                raise InputError(
                    "a CUDA graph is being captured, and headrace moves CUDA tensors through host "
                    "memory, which no graph can hold: leave the call out of the graph, or use nccl"
                )
        self.devices = [device]
        self._staging = _staging(device)
        self._begun = self._staging.mark()
        self._arrived: torch.cuda.Event | None = None

    def to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return completed, contiguous copies; waits in this thread, without the GIL."""
        hosts = [self.room(tensor) for tensor in tensors]
        for host, tensor in zip(hosts, tensors, strict=True):
            # else lazy conjugates and negatives would be resolved in host memory too early
            plain = tensor.detach().resolve_conj().resolve_neg()
            host.copy_(plain, non_blocking=True)
        if hosts:
            self._staging.mark().synchronize()
        return hosts

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return pinned memory of the tensor's shape and type."""
        return self._staging.room(tensor)

    def to_device(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Begin to copy the second of each pair to the first on the side stream, in any thread."""
        staging = self._staging
        with staging.beside(self._begun):  # earlier kernels may still use the tensors
            for tensor, host in pairs:
                check_writable(tensor)  # its storage may have been resized since
                staging.to_device(host, tensor)
                staging.keep(tensor)
            self._arrived = staging.mark()

    def wait(self) -> None:
        """Make the current stream wait for `to_device`'s copies."""
        if self._arrived is not None:
            self._staging.follow(self._arrived)

    def done(self) -> bool:
        """Return whether `to_device`'s copies are complete."""
        return self._arrived is not None and self._arrived.query()


def copies_for(tensor: torch.Tensor) -> CudaCopies | None:
    """Return the copies of a call on `tensor`'s device; None if it is in host memory.

    Raises
    ------
    InputError : the backend does not support the device.
    """
    if tensor.is_cpu:
        return None
    if tensor.is_cuda:
        return CudaCopies(tensor.device)
    raise InputError(
        f"a tensor is on {tensor.device}; the headrace backend supports CPU tensors, and CUDA "
        "tensors through host memory: pass tensor.cpu(), or give that device another backend, "
        f'as in init_process_group("cpu:headrace,{tensor.device.type}:...")'
    )
