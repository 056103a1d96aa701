"""Argument checks of the process group; errors name the argument, its value and what is needed."""

import operator
from collections.abc import Sequence

import torch

from headrace.collectives.run.torch.buffers import Tensors, check_dense
from headrace.errors import InputError
from headrace.executor.executor import TAGS


def tag(number: int) -> None:
    """Raise InputError unless a message can have this tag."""
    if not 0 <= number < TAGS:
        raise InputError(f"the tag of a message is {number}, needs one from 0 to 2^31 - 1")


def one_dtype(call: str, tensors: Tensors) -> None:
    """Raise InputError unless all are dense tensors of one dtype on one device."""
    for tensor in tensors:
        check_dense(tensor)
        if tensor.device != tensors[0].device:
            raise InputError(
                f"{call}: the tensors are on {tensors[0].device} and {tensor.device}, needs one "
                "device for all: move them with tensor.to()"
            )
        if tensor.dtype != tensors[0].dtype:
            raise InputError(
                f"{call}: the tensors are of {tensors[0].dtype} and {tensor.dtype}, needs one "
                "dtype for all"
            )


def blocks(
    call: str, tensors: Tensors, own: torch.Tensor, rank: int, ranks: int, *, even: bool = True
) -> None:
    """Check a list of one tensor per rank against the own one.

    Without `even` the sizes of all but the own block may differ.
    """
    if len(tensors) != ranks:
        raise InputError(
            f"{call}: the list has {len(tensors)} tensors, needs one per rank ({ranks})"
        )
    one_dtype(call, [own, *tensors])
    for index, tensor in enumerate(tensors):
        if (even or index == rank) and tensor.numel() != own.numel():
            raise InputError(
                f"{call}: tensor {index} of the list has {tensor.numel()} elements, "
                f"needs {own.numel()}"
            )


def joined_blocks(call: str, tensor: torch.Tensor, block: torch.Tensor, ranks: int) -> None:
    """Check a tensor that holds one block per rank."""
    one_dtype(call, [tensor, block])
    if tensor.numel() != block.numel() * ranks:
        raise InputError(
            f"{call}: the large tensor has {tensor.numel()} elements, needs {ranks} times the "
            f"{block.numel()} of the small one"
        )


def pairs(call: str, outputs: Tensors, inputs: Tensors) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the pairs of a coalesced call, which needs as many outputs as inputs."""
    if len(outputs) != len(inputs):
        raise InputError(
            f"{call}: there are {len(outputs)} output and {len(inputs)} input tensors, needs as "
            "many of one as of the other"
        )
    return list(zip(outputs, inputs, strict=True))


def list_of(call: str, name: str, tensors: Tensors, ranks: int) -> None:
    """Check that a list has one tensor per rank."""
    if len(tensors) != ranks:
        raise InputError(
            f"{call}: the {name} list has {len(tensors)} tensors, needs one per rank ({ranks})"
        )


def even_split(tensor: torch.Tensor, ranks: int) -> int:
    """Return the rows of dimension 0 per rank; raises InputError if they do not divide evenly."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if rows % ranks:
        raise InputError(
            f"all_to_all_single: dimension 0 is {rows}, needs a multiple of {ranks} "
            "(or split sizes)"
        )
    return rows // ranks


def splits(name: str, tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> Sequence[int]:
    """Return the checked split sizes; equal ones if none are given.

    As by torch's own groups, a size may be whatever stands for an integer, and is read here, once:
    sums with a tensor of one element would change it.
    """
    if not len(sizes):
        return [even_split(tensor, ranks)] * ranks
    sizes = [operator.index(size) for size in sizes]
    if not tensor.dim():
        raise InputError(f"all_to_all_single: {name} is given for a tensor without a dimension")
    if len(sizes) != ranks or sum(sizes) != tensor.shape[0] or min(sizes) < 0:
        raise InputError(
            f"all_to_all_single: {name} is {sizes}, needs {ranks} sizes that add up to "
            f"{tensor.shape[0]}"
        )
    return sizes


def own_split(splits: tuple[Sequence[int], Sequence[int]], rank: int) -> None:
    """Check that the split sizes of output and input agree on what a rank sends to itself."""
    output, source = splits
    if output[rank] != source[rank]:
        raise InputError(
            f"all_to_all_single: the split sizes disagree: rank {rank} sends {source[rank]} rows "
            f"to itself and receives {output[rank]} (input_split_sizes {list(source)}, "
            f"output_split_sizes {list(output)})"
        )


def own_block(outputs: Tensors, inputs: Tensors, rank: int) -> None:
    """Check that the lists of an all_to_all agree on what a rank sends to itself."""
    if outputs[rank].numel() != inputs[rank].numel():
        raise InputError(
            f"all_to_all: the sizes of the lists disagree: rank {rank} sends "
            f"{inputs[rank].numel()} elements to itself and receives {outputs[rank].numel()}"
        )
