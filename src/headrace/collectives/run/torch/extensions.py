"""Collectives on top of torch's: of lengths that only the sender knows, and of any function.

Lengths are exchanged first and checked against a limit that all ranks give, so that no rank
allocates whatever memory another one claims. Every rank sends its lengths even if they are invalid:
then all ranks raise the same error, and none is left waiting.

Each is two collectives. With ``async_op=True`` the first is begun at once, and the second in the
callback of the first (see `callbacks`): second ones are begun in the order of the first ones, on
connections of their own, however many are under way. A function of `aggregate` delays those behind
it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.collectives.run.torch.calls import Calls
from headrace.collectives.run.torch.chained import ChainedWork
from headrace.errors import CommunicationError, InputError

Group = dist.ProcessGroup | None


def all_gather_variable(
    tensor: Tensor, limit: int, group: Group = None, *, async_op: bool = False
) -> Any:
    """Gather tensors that differ in their first dimension; returns one per rank.

    Parameters
    ----------
    tensor : this rank's, of shape (n, ...); dtype and other dimensions are the same on all ranks.
    limit : the largest n of any rank; the same on all ranks.
    async_op : return a work, whose `result` is the list of tensors when it has ended, and whose
        `wait` raises the errors of the ranks' lengths.

    Raises
    ------
    CommunicationError : naming the rank whose n is over the limit.
    InputError : the ranks' limits differ; an asynchronous call in a group of several backends.
    """
    blocks: list[Tensor] = []

    def steps() -> Iterator[Any]:
        own = torch.tensor([len(tensor), limit, len(tensor)], device="cpu")
        received = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        yield dist.all_gather(received, own, group=group, async_op=async_op)
        blocks.extend(_blocks(torch.stack(received), tensor, limit))
        yield dist.all_gather(blocks, tensor.contiguous(), group=group, async_op=async_op)

    return _run(steps(), blocks, group, async_op)


def all_to_all_variable(
    tensors: Sequence[Tensor], limit: int, group: Group = None, *, async_op: bool = False
) -> Any:
    """Send ``tensors[r]`` to rank r; returns the tensors received, by rank.

    Parameters and errors are as in `all_gather_variable`; `limit` holds for every tensor.
    """
    if len(tensors) != (ranks := dist.get_world_size(group)):
        raise InputError(f"{len(tensors)} tensors for {ranks} ranks")
    blocks: list[Tensor] = []

    def steps() -> Iterator[Any]:
        # a length that only its receiver would reject must be rejected by all: send the longest
        longest = max(map(len, tensors))
        own = torch.tensor([[len(tensor), limit, longest] for tensor in tensors], device="cpu")
        received = torch.empty_like(own)
        yield dist.all_to_all_single(received, own, group=group, async_op=async_op)
        blocks.extend(_blocks(received, tensors[0], limit))
        sent = [tensor.contiguous() for tensor in tensors]
        yield dist.all_to_all(blocks, sent, group=group, async_op=async_op)

    return _run(steps(), blocks, group, async_op)


def aggregate(
    tensor: Tensor,
    function: Callable[[Tensor], Tensor],
    group: Group = None,
    *,
    async_op: bool = False,
) -> Any:
    """Replace `tensor` on all ranks by `function` of the ranks' tensors: medians, votes, and so on.

    Every rank aggregates one part of the vector and sends the result to all: as in an allreduce,
    every rank sends 2(n-1)/n of the vector. The function need be neither associative nor
    commutative: it gets all contributions at once, in rank order.

    Parameters
    ----------
    tensor : contiguous, of the same shape and dtype on all ranks; overwritten.
    function : from contributions of shape (ranks, k), for some k elements, to a result of shape
        (k,) and the same dtype. It has to treat the elements alike.
    async_op : return a work (else None); `function` is then called on another thread.

    Raises
    ------
    InputError : the tensor is not contiguous, or the result has another shape or dtype. This and
        any exception of the function ends the group for all ranks, as they cannot continue. Or as
        in `all_gather_variable`.
    """
    if not tensor.is_contiguous():
        raise InputError("aggregate needs a contiguous tensor: call .contiguous() before")

    def steps() -> Iterator[Any]:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        parts = list(tensor.view(-1).tensor_split(ranks))
        mine = torch.empty((ranks, len(parts[rank])), dtype=tensor.dtype, device=tensor.device)
        yield dist.all_to_all(list(mine), parts, group=group, async_op=async_op)
        try:
            result = function(mine)
            if result.shape != mine.shape[1:] or result.dtype != tensor.dtype:
                raise InputError(
                    f"the function made {result.dtype} of shape {tuple(result.shape)}, needs "
                    f"{tensor.dtype} of shape {tuple(mine.shape[1:])}"
                )
        except BaseException as error:
            backend = (group or dist.group.WORLD)._get_backend(tensor.device)  # pyright: ignore
            if isinstance(backend, Calls):
                backend.fail(f"aggregation failed at rank {rank}: {error}")
            raise
        yield dist.all_gather(parts, result.contiguous(), group=group, async_op=async_op)

    work = _run(steps(), [tensor], group, async_op)
    return work if async_op else None


def _run(
    steps: Iterator[Any], results: list[Tensor], group: Any, async_op: bool
) -> "list[Tensor] | ChainedWork":
    """Run the collectives of `steps` one after the other, or begin the first."""
    if async_op:
        calls = group or dist.group.WORLD
        if not isinstance(calls, Calls):
            raise InputError(
                "an asynchronous call of this kind needs a group of headrace alone: make it by "
                'new_group(backend="headrace"), or call it without async_op'
            )
        return calls.chain(steps, results)
    for _ in steps:
        pass
    return results


def _blocks(rows: Tensor, like: Tensor, limit: int) -> list[Tensor]:
    """Check every rank's (length, limit, longest); returns tensors of the lengths."""
    lengths, limits, longest = rows.T.tolist()
    if any(rank_limit != limit for rank_limit in limits):
        raise InputError(f"the ranks' limits differ: {limits}")
    for rank, (length, most) in enumerate(zip(lengths, longest, strict=True)):
        if not 0 <= length <= most <= limit:
            raise CommunicationError(f"rank {rank} has {most} rows, the limit is {limit}")
    return [like.new_empty((length, *like.shape[1:])) for length in lengths]
