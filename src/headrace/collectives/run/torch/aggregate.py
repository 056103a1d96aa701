"""Aggregation by any function that is no reduce operator: medians, votes, trimmed means."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from headrace.errors import InputError


def aggregate(
    tensor: torch.Tensor,
    function: Callable[[torch.Tensor], torch.Tensor],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Replace `tensor` on all ranks by `function` of the ranks' tensors.

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


def _end(group: dist.ProcessGroup | None, device: torch.device, reason: str) -> None:
    """Abort the group, so that no rank waits for a result until the deadline."""
    backend = (group or dist.group.WORLD)._get_backend(device)  # pyright: ignore
    executor = getattr(backend, "executor", None)
    if executor is not None:
        executor.abort(reason)
