"""A double of a device that this machine does not have, for the tests of staging.

Every tensor that a test makes counts as one of that device. What is copied to host memory is really
copied, and what is copied back arrives as late as a stream may let it: when it is waited for.
"""

from collections.abc import Sequence
from typing import Any

import torch

from headrace.collectives.run.torch import sparse, staging
from headrace.collectives.run.torch.calls import Calls
from headrace.collectives.run.torch.work import writing


class LateCopies:
    """Copies whose results are not there before `wait`; see `copies.CudaCopies`."""

    def __init__(self) -> None:
        self.devices: list[torch.device] = []
        self._pairs: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()

    def to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        hosts = [self.room(tensor) for tensor in tensors]
        for host, tensor in zip(hosts, tensors, strict=True):
            host.copy_(tensor.detach())
        return hosts

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        host.on_host = True  # type: ignore[attr-defined]
        return host

    def to_device(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        assert all(hasattr(host, "on_host") for _, host in pairs)
        self._pairs = pairs

    def wait(self) -> None:
        with writing(tensor for tensor, _ in self._pairs):  # a stream has no mode
            for tensor, host in self._pairs:
                tensor.copy_(host)
        self._pairs = ()

    def done(self) -> bool:
        self.wait()
        return True


def install() -> None:
    """Let every CPU tensor count as one of the device, in this process, from now on."""
    real = staging.copies_for

    def copies_for(tensor: torch.Tensor) -> Any:
        assert real(tensor) is None, "not a CPU tensor"
        return None if hasattr(tensor, "on_host") else LateCopies()

    def allreduce(self: Calls, tensors: Sequence[torch.Tensor], opts: object = None) -> object:
        dense = Calls._staged_allreduce
        return (sums_sparse if tensors[0].layout is not torch.strided else dense)(
            self, tensors, opts
        )

    sums_sparse = Calls.allreduce
    staging.copies_for = sparse.copies_for = copies_for
    Calls.allreduce = allreduce
