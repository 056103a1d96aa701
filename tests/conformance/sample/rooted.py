"""One to all, all to one: broadcast, reduce, gather, scatter."""

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.conformance.sample.checks import (
    COMPLEX,
    FLOAT8,
    FLOATS,
    INTEGERS,
    SIZES,
    UNSIGNED,
    check,
    everyone,
    made,
    make,
    me,
    reference,
    same,
)


@check
def broadcast() -> None:
    for dtype in (*FLOATS, *FLOAT8, *INTEGERS, *UNSIGNED, *COMPLEX, torch.bool):
        for root in everyone():
            for size in SIZES:
                tensor = make(me(), size, dtype, root)
                dist.broadcast(tensor, root)
                same(tensor, make(root, size, dtype, root), f"{dtype} {root} {size}")


@check
def broadcast_only_reads_at_the_root() -> None:
    """One whose elements share memory was refused at the root."""
    for asynchronous in (False, True):
        for view in (torch.full((1,), 7.0).expand(3), torch.tensor([1j, 2j, 3j]).conj().imag):
            tensor = view if me() == 0 else torch.zeros(3, dtype=view.dtype)
            work = dist.broadcast(tensor, 0, async_op=asynchronous)
            if work is not None:
                work.wait()
            same(tensor, view)


@check
def reduce_leaves_the_others_alone() -> None:
    for root in everyone():
        for size in SIZES:
            tensor = make(me(), size, torch.int32, root)
            dist.reduce(tensor, root, ReduceOp.SUM)
            parts = made(size, torch.int32, root)
            same(tensor, reference(ReduceOp.SUM, parts) if me() == root else parts[me()])
    total = torch.full((5,), 2.0 * me())
    dist.reduce(total, 0, ReduceOp.AVG)
    if me() == 0:
        assert total.tolist() == [2.0 * sum(everyone()) / len(everyone())] * 5


@check
def gather_and_scatter() -> None:
    for root in everyone():
        for size in SIZES:
            own = make(me(), size, torch.int64, root)
            parts = made(size, torch.int64, root)
            blocks = [torch.empty_like(own) for _ in everyone()] if me() == root else None
            dist.gather(own, blocks, root)
            for block, wanted in zip(blocks or [], parts, strict=me() == root):
                same(block, wanted)
            got = torch.empty_like(own)
            dist.scatter(got, parts if me() == root else None, root)
            same(got, own)
            same(parts[root], make(root, size, torch.int64, root))
    own = make(me(), 6, torch.float32)
    whole = torch.empty(6 * len(everyone())) if me() == 0 else None
    dist.gather_single(own, whole, 0)
    if whole is not None:
        same(whole, torch.cat(made(6, torch.float32)))
    strided = torch.zeros(6, 2)[:, 0]
    columns = [part.view(6, 1).expand(6, 2)[:, 0] for part in made(6, torch.float32)]
    dist.scatter(strided, columns if me() == 0 else None, 0)
    same(strided, own)
