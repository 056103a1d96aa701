"""Sum of sparse tensors, of which the ranks have different elements.

The ranks exchange the type, shape and number of elements of their tensors in an allgather, and then
the elements. Lengths and indices are checked before they are used. An asynchronous call begins the
second part in a callback, concurrently with later collectives.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from headrace.collectives.run.torch import buffers as binding
from headrace.collectives.run.torch.copies import copies_for
from headrace.collectives.run.torch.work import SeveralWorks
from headrace.errors import CommunicationError, InputError
from headrace.job.same import SHORT, difference, shortened

_HEAD_BYTES = 8 + SHORT


class _Part(NamedTuple):
    """One rank's elements, in host memory: `indices` (sparse dimensions, n), `values` (n, ...)."""

    indices: torch.Tensor
    values: torch.Tensor


def all_reduce(group: Any, tensor: torch.Tensor, opts: Any) -> dist.Work:
    """Sum sparse COO tensors of one shape and dtype; afterwards `tensor` is coalesced.

    Parameters
    ----------
    group : `Calls`.

    Raises
    ------
    InputError : another layout; another operator than SUM; an unsupported device; the ranks'
        tensors differ (on all ranks).
    CommunicationError : a rank sent indices outside of the tensor; a peer failed.
    """
    if not tensor.is_sparse:
        binding.check_dense(tensor)
    if opts.reduceOp != ReduceOp.SUM:
        raise InputError(
            "sparse tensors can be reduced with ReduceOp.SUM only: for others pass to_dense()"
        )
    part = _own_part(tensor)
    stream = _current_stream(tensor)
    mode = torch.inference_mode if tensor.is_inference() else torch.no_grad

    def steps() -> Iterator[dist.Work]:
        heads = torch.zeros((group.size(), _HEAD_BYTES), dtype=torch.uint8, device="cpu")
        yield group.all_gather_single(heads, _head(tensor, len(part.values)), opts)
        parts = _parts(heads, tensor, part)
        indices, values = (
            [field.view(-1) for field in fields] for fields in zip(*parts, strict=True)
        )
        first = group.allgather([indices], [part.indices.view(-1)], opts)
        yield group.allgather([values], [part.values.view(-1)], opts)
        first.wait()
        with stream, mode():
            tensor.copy_(_sum(parts, tensor))

    if opts.asyncOp:
        return group.chain(steps(), [tensor])
    for _ in steps():
        pass
    return SeveralWorks(results=[tensor])


def _own_part(tensor: torch.Tensor) -> _Part:
    mine = tensor.detach().coalesce()
    own = [binding.plain(mine.indices()), binding.plain(mine.values())]
    copies = copies_for(tensor)
    return _Part(*(own if copies is None else copies.to_host(own)))


def _current_stream(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Return a context for other threads, in which copies to `tensor` use this thread's stream."""
    if not tensor.is_cuda:
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream(tensor.device))


def _head(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Encode a rank's tensor: its number of elements, then text that is the same on all ranks."""
    text = f"{tensor.dtype} {tuple(tensor.shape)}, {tensor.sparse_dim()} dimensions of it sparse"
    raw = count.to_bytes(8, "little") + shortened(text).encode().ljust(SHORT, b"\0")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _parts(heads: torch.Tensor, tensor: torch.Tensor, own: _Part) -> list[_Part]:
    """Return memory for every rank's part."""
    rows = [bytes(row.tolist()) for row in heads]
    texts = [row[8:].rstrip(b"\0").decode(errors="replace") for row in rows]
    if problem := difference("sparse tensors", texts, "All need the same type and shape"):
        raise InputError(f"all_reduce: {problem}")
    most = math.prod(tensor.shape[: tensor.sparse_dim()])
    parts: list[_Part] = []
    for peer, row in enumerate(rows):
        count = int.from_bytes(row[:8], "little")
        if count > most:
            raise CommunicationError(
                f"all_reduce: rank {peer} has {count} elements of a sparse tensor that has room "
                f"for {most}"
            )
        indices = own.indices.new_empty((tensor.sparse_dim(), count))
        parts.append(_Part(indices, own.values.new_empty((count, *own.values.shape[1:]))))
    return parts


def _sum(parts: Sequence[_Part], tensor: torch.Tensor) -> torch.Tensor:
    limits = torch.tensor(tensor.shape[: tensor.sparse_dim()], device="cpu")[:, None]
    for rank, part in enumerate(parts):
        if ((part.indices < 0) | (part.indices >= limits)).any():
            raise CommunicationError(
                f"all_reduce: rank {rank} sent indices outside of a sparse tensor of shape "
                f"{tuple(tensor.shape)}"
            )
    return torch.sparse_coo_tensor(
        torch.cat([part.indices for part in parts], 1),
        torch.cat([part.values for part in parts]),
        tensor.shape,
        device="cpu",
        check_invariants=False,
    ).coalesce()
