"""Bytes of tensors' storages as allocators round them, and of what a step holds throughout."""

# pyright: reportPrivateUsage=false

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch._functorch._aot_autograd.descriptors import BufferAOTInput, ParamAOTInput
from torch.fx import Node

ROUNDING = {"cpu": 64, "cuda": 512}
"""Granularity of allocations in bytes: CPU allocator's alignment, caching allocator's blocks."""
STATE_BYTES = 5056
"""State of the CPU's random generator; a CUDA generator's has 16."""


def rounded_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's storage, as the allocator of its device rounds them."""
    step = ROUNDING.get(tensor.device.type, 1)
    return -(-tensor.untyped_storage().nbytes() // step) * step


def resident_bytes(primals: Sequence[Node], random: int) -> dict[str, int]:
    """Return bytes of parameters, buffers, inputs, and of states of random generators.

    An operator that runs again holds two: that of its first run, and the one to go on with.

    Parameters
    ----------
    primals : nodes of the step's inputs, parameters and buffers.
    random : operators that draw random numbers.
    """
    kinds = {ParamAOTInput: "parameters", BufferAOTInput: "buffers"}
    nbytes = {"parameters": 0, "buffers": 0, "inputs": 0, "generators": 0}
    nbytes["generators"] = (random + 1) * STATE_BYTES if random else 0
    counted: set[int] = set()
    for node in primals:
        kind = kinds.get(type(node.meta["desc"]), "inputs")
        for tensor in tensors_of(node):
            if (key := storage_key(tensor)) not in counted:
                counted.add(key)
                on_host = tensor.device.type == "cpu"
                nbytes[kind] += (
                    tensor.untyped_storage().nbytes() if on_host else rounded_bytes(tensor)
                )
    return nbytes


def inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that hold the numbers of one: of a library's own class those within it."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = cast(Any, tensor).__tensor_flatten__()
    return [inner for name in names for inner in inner_tensors(getattr(tensor, name))]


def tensors_of(node: Node) -> list[torch.Tensor]:
    """Return the fake tensors that a node returns."""
    returned = node.meta.get("val")
    outputs: Iterable[Any] = returned if isinstance(returned, list | tuple) else (returned,)
    return [output for output in outputs if isinstance(output, torch.Tensor)]


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number that identifies a storage; the trace keeps all, so none is reused."""
    return tensor.untyped_storage()._cdata
