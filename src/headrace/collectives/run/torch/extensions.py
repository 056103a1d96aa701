"""Collectives on top of torch's: of lengths that only the sender knows, and of any function.

Lengths are exchanged first and checked against a limit that all ranks give, so that no rank
allocates whatever memory another one claims. Every rank sends its lengths even if they are invalid:
then all ranks raise the same error, and none is left waiting.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from headrace.errors import CommunicationError, InputError


def all_gather_variable(
    tensor: torch.Tensor, limit: int, group: dist.ProcessGroup | None = None
) -> list[torch.Tensor]:
    """Gather tensors that differ in their first dimension; returns one per rank.

    Parameters
    ----------
    tensor : this rank's, of shape (n, ...); dtype and other dimensions are the same on all ranks.
    limit : the largest n of any rank; the same on all ranks.

    Raises
    ------
    CommunicationError : naming the rank whose n is over the limit.
    InputError : the ranks' limits differ.
    """
    ranks = dist.get_world_size(group)
    own = torch.tensor([len(tensor), limit])
    received = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(received, own, group=group)
    lengths = _lengths(torch.stack(received), limit)
    blocks = [tensor.new_empty((length, *tensor.shape[1:])) for length in lengths]
    dist.all_gather(blocks, tensor.contiguous(), group=group)
    return blocks


def all_to_all_variable(
    tensors: Sequence[torch.Tensor], limit: int, group: dist.ProcessGroup | None = None
) -> list[torch.Tensor]:
    """Send ``tensors[r]`` to rank r; returns the tensors received, by rank.

    Parameters and errors are as in `all_gather_variable`; `limit` holds for every tensor.
    """
    ranks = dist.get_world_size(group)
    if len(tensors) != ranks:
        raise InputError(f"{len(tensors)} tensors for {ranks} ranks")
    own = torch.tensor([[len(tensor), limit] for tensor in tensors])
    received = torch.empty_like(own)
    dist.all_to_all_single(received, own, group=group)
    # a length that only its receiver would reject must be rejected by all
    wrong = torch.tensor([int((received[:, 0] > limit).any() or (received[:, 1] != limit).any())])
    dist.all_reduce(wrong, dist.ReduceOp.MAX, group=group)
    lengths = _lengths(received, limit)
    if wrong:
        raise CommunicationError(f"another rank was sent over {limit} rows, or has another limit")
    blocks = [tensors[0].new_empty((length, *tensors[0].shape[1:])) for length in lengths]
    dist.all_to_all(blocks, [tensor.contiguous() for tensor in tensors], group=group)
    return blocks


def aggregate(
    tensor: torch.Tensor,
    function: Callable[[torch.Tensor], torch.Tensor],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Replace `tensor` on all ranks by `function` of the ranks' tensors: medians, votes, and so on.

    Every rank aggregates one part of the vector and sends the result to all: as in an allreduce,
    every rank sends 2(n-1)/n of the vector. The function need be neither associative nor
    commutative: it gets all contributions at once, in rank order.

    Parameters
    ----------
    tensor : contiguous, of the same shape and dtype on all ranks; overwritten.
    function : from contributions of shape (ranks, k), for some k elements, to a result of shape
        (k,) and the same dtype. It has to treat the elements alike.

    Raises
    ------
    InputError : the tensor is not contiguous, or the result has another shape or dtype. This and
        any exception of the function ends the group for all ranks, as they cannot continue.
    """
    if not tensor.is_contiguous():
        raise InputError("aggregate needs a contiguous tensor: call .contiguous() before")
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    parts = list(tensor.view(-1).tensor_split(ranks))
    mine = torch.empty((ranks, len(parts[rank])), dtype=tensor.dtype, device=tensor.device)
    dist.all_to_all(list(mine), parts, group=group)
    try:
        result = function(mine)
        if result.shape != mine.shape[1:] or result.dtype != tensor.dtype:
            raise InputError(
                f"the function made {result.dtype} of shape {tuple(result.shape)}, needs "
                f"{tensor.dtype} of shape {tuple(mine.shape[1:])}"
            )
    except BaseException as error:
        _end(group, tensor.device, f"aggregation failed at rank {rank}: {error}")
        raise
    dist.all_gather(parts, result.contiguous(), group=group)


def _lengths(rows: torch.Tensor, limit: int) -> list[int]:
    """Check every rank's (length, limit); returns the lengths."""
    limits = rows[:, 1].tolist()
    if any(other != limit for other in limits):
        raise InputError(f"the ranks' limits differ: {limits}")
    lengths = [int(length) for length in rows[:, 0]]
    for rank, length in enumerate(lengths):
        if not 0 <= length <= limit:
            raise CommunicationError(f"rank {rank} has {length} rows, the limit is {limit}")
    return lengths


def _end(group: dist.ProcessGroup | None, device: torch.device, reason: str) -> None:
    """Abort the group, so that no rank waits for a result until the deadline."""
    backend = (group or dist.group.WORLD)._get_backend(device)  # pyright: ignore
    executor = getattr(backend, "executor", None)
    if executor is not None:
        executor.abort(reason)
