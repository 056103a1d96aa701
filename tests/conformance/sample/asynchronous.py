"""Asynchronous work: what is begun, waited for later, or chained."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.conformance.sample.checks import check, everyone, made, make, me, reference, same


@check
def asynchronous_calls() -> None:
    tensors = [make(me(), 100 + 37 * i, torch.float32, i) for i in range(60)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    for i, tensor in enumerate(tensors):
        same(tensor, reference(ReduceOp.SUM, made(len(tensor), torch.float32, i)))
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    while not work.is_completed():
        pass
    assert work.result()[0][0].item() == len(everyone())
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert work.wait(timedelta(seconds=20))
    for _ in range(20):
        dist.all_reduce(torch.ones(1000), async_op=True)  # dropped: the buffers must live on
    dist.barrier(async_op=True).wait()


@check
def futures() -> None:
    n = len(everyone())
    tensors = [torch.full((size,), 1.0) for size in (1, 10, 100_000)]
    found = []
    for tensor in tensors:
        future = dist.all_reduce(tensor, async_op=True).get_future()
        found.append(future.then(lambda done: done.value()[0] * 2))
    for future in torch.futures.collect_all(found).wait():
        assert (future.value() == 2 * n).all()
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    assert work.get_future().wait()[0].tolist() == [n, n]
    assert work.get_future().done()
    work = dist.all_reduce(torch.ones(2), async_op=True)
    early = work.get_future()
    work.wait()
    assert early.wait()[0].tolist() == [n, n]


@check
def everything_asynchronously() -> None:
    n = len(everyone())
    own = make(me(), 8, torch.float32)
    parts = made(8, torch.float32)
    blocks = [torch.empty(8) for _ in everyone()]
    whole = torch.empty(8 * n)
    output, scattered, spread = torch.empty(8), torch.empty(8), own.clone()
    swapped = torch.empty(n)
    source = torch.cat([own] * n)
    gathered = [torch.empty(8) for _ in everyone()] if me() == 0 else None
    works = [
        dist.all_gather(blocks, own, async_op=True),
        dist.all_gather_into_tensor(whole, own, async_op=True),
        dist.reduce_scatter_tensor(output, source, async_op=True),
        dist.broadcast(spread, 0, async_op=True),
        dist.gather(own, gathered, 0, async_op=True),
        dist.scatter(scattered, parts if me() == 0 else None, 0, async_op=True),
        dist.all_to_all_single(swapped, torch.full((n,), float(me())), async_op=True),
        dist.barrier(async_op=True),
    ]
    for work in works:
        work.wait()
    same(torch.stack(blocks), torch.stack(parts))
    same(whole, torch.cat(parts))
    same(output, torch.stack(parts).sum(0))
    same(spread, parts[0])
    same(scattered, own)
    assert swapped.tolist() == list(everyone())
    if gathered is not None:
        same(torch.stack(gathered), torch.stack(parts))
