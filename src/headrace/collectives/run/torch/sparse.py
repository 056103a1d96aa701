"""Sum of sparse tensors, of which the ranks have different elements.

The ranks exchange the type, shape and number of elements of their tensors in an allgather, and then
the elements as messages. Lengths and indices are checked before they are used. Messages are matched
by their tags, not in the order of calls, so those of an asynchronous call are sent and received in
a thread of its own when the allgather is done, concurrently with later collectives.
"""

import contextlib
import hashlib
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from headrace.collectives.demand import Collective
from headrace.collectives.run.torch import buffers as binding
from headrace.collectives.run.torch.copies import copies_for
from headrace.collectives.run.torch.untraced import untraced
from headrace.collectives.run.torch.work import PendingWork, SeveralWorks
from headrace.errors import CommunicationError, InputError

if TYPE_CHECKING:
    from headrace.collectives.run.torch.caller import Caller

_TEXT_BYTES = 248
_HEAD_BYTES = 8 + _TEXT_BYTES


class _Part(NamedTuple):
    """One rank's elements, in host memory: `indices` (sparse dimensions, n), `values` (n, ...)."""

    indices: torch.Tensor
    values: torch.Tensor


@untraced
class SparseWork(PendingWork):
    """An asynchronous sum, ended by its thread, at the deadline at the latest."""

    def _wait_natively(self) -> None:
        self._wait_for_end(None)


def all_reduce(caller: "Caller", tensor: torch.Tensor, opts: Any) -> dist.Work:
    """Sum sparse COO tensors of one shape and dtype; afterwards `tensor` is coalesced.

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
    end = time.monotonic() + caller.deadline_s(opts)
    heads = torch.zeros((caller.executor.ranks, _HEAD_BYTES), dtype=torch.uint8)
    exchanged = _exchange_heads(caller, heads, _head(tensor, len(part.values)), opts)
    tag = caller.next_tag()
    result: list[torch.Tensor] = []

    def exchange() -> None:
        exchanged.wait()
        parts = _parts(heads, tensor, part, caller.executor.rank)
        _exchange(caller, parts, tag, end)
        result.append(_sum(parts, tensor))

    stream = _current_stream(tensor)
    mode = torch.inference_mode if tensor.is_inference() else torch.no_grad

    def after() -> None:
        with stream, mode():
            tensor.copy_(result.pop())

    if not opts.asyncOp:
        exchange()
        after()
        return SeveralWorks(results=[tensor])
    work = SparseWork(caller.executor, [tensor], after, callbacks=caller.callbacks)
    caller.begin_thread(work, exchange)
    return work


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
    encoded = text.encode()
    if len(encoded) > _TEXT_BYTES:
        encoded = hashlib.sha256(encoded).hexdigest().encode()
    raw = count.to_bytes(8, "little") + encoded.ljust(_TEXT_BYTES, b"\0")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _exchange_heads(
    caller: "Caller", heads: torch.Tensor, own: torch.Tensor, opts: Any
) -> dist.Work:
    ready = caller.ready(Collective.ALLGATHER, heads.nbytes)
    return caller.call(ready, binding.gathered([heads], own, ready.layout), [heads], opts)


def _parts(heads: torch.Tensor, tensor: torch.Tensor, own: _Part, rank: int) -> list[_Part]:
    """Return every rank's part: the own one, and uninitialized ones for the others."""
    rows = [bytes(row.tolist()) for row in heads]
    texts = [row[8:].rstrip(b"\0").decode(errors="replace") for row in rows]
    if len(set(texts)) > 1:
        listed = "; ".join(f"rank {other}: {text}" for other, text in enumerate(texts))
        raise InputError(f"all_reduce: the ranks' sparse tensors differ: {listed}")
    most = math.prod(tensor.shape[: tensor.sparse_dim()])
    parts: list[_Part] = []
    for other, row in enumerate(rows):
        count = int.from_bytes(row[:8], "little")
        if count > most:
            raise CommunicationError(
                f"all_reduce: rank {other} has {count} elements of a sparse tensor that has room "
                f"for {most}"
            )
        room = _Part(
            own.indices.new_empty((tensor.sparse_dim(), count)),
            own.values.new_empty((count, *own.values.shape[1:])),
        )
        parts.append(own if other == rank else room)
    return parts


def _exchange(caller: "Caller", parts: Sequence[_Part], tag: int, end: float) -> None:
    """Send the own part to all other ranks and receive theirs."""
    rank = caller.executor.rank
    deadline_s = max(end - time.monotonic(), 1e-3)
    others = [(rank + step) % len(parts) for step in range(1, len(parts))]
    works: list[PendingWork] = []
    for receiving in (True, False):  # messages whose receives are posted need no buffering
        for other in others:
            begin = caller.receive if receiving else caller.send
            for tensor in parts[other if receiving else rank]:
                if tensor.nbytes:
                    works.append(begin(tensor, other, tag, deadline_s=deadline_s))
    for work in works:
        work.wait()


def _sum(parts: Sequence[_Part], tensor: torch.Tensor) -> torch.Tensor:
    limits = torch.tensor(tensor.shape[: tensor.sparse_dim()])[:, None]
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
        check_invariants=False,
    ).coalesce()
