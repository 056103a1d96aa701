"""Aggregation by any function, for what no operator says: medians, votes, trimmed means."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from headrace.errors import InputError

__all__ = ["aggregate"]


def aggregate(
    tensor: torch.Tensor,
    function: Callable[[torch.Tensor], torch.Tensor],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Replace `tensor` on all ranks by what `function` makes of the ranks' tensors.

    Every rank aggregates one part of the vector and sends the result to all: like an allreduce,
    2(n-1)/n of the vector out of every rank. The function need be neither associative nor
    commutative: it gets all contributions at once, in the order of the ranks.

    Parameters
    ----------
    tensor : contiguous, of the same shape and dtype on all ranks; overwritten.
    function : from contributions of shape (ranks, k), for some k elements, to a result of shape
        (k,) and the same dtype. It has to treat the elements alike.

    Raises
    ------
    InputError : the tensor is not contiguous, or the result has another shape or dtype. This and
        whatever the function raises ends the group for all ranks, as they cannot go on without it.
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


def _end(group: dist.ProcessGroup | None, device: torch.device, reason: str) -> None:
    """Spare the other ranks the wait for a result that will not come."""
    backend = (group or dist.group.WORLD)._get_backend(device)  # pyright: ignore
    executor = getattr(backend, "executor", None)
    if executor is not None:
        executor.abort(reason)
