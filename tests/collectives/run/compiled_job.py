"""One rank of a job whose calls are made in compiled functions, run by test_compiled.py.

Every function of `CALLS` and `TRAININGS` is run as it is and compiled, and has to return the same.
Left out are calls that read the devices of a group (`monitored_barrier`, those of objects): torch
2.15 cannot compile them on any backend.
"""

import json
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import headrace.torch

RANKS = 2


def own(size: int = 4) -> torch.Tensor:
    """This rank's data, made outside of what is compiled."""
    return torch.arange(size, dtype=torch.float32) + 10 * dist.get_rank()


def all_reduce(x: torch.Tensor) -> Any:
    dist.all_reduce(x)
    return x + 1


def average(x: torch.Tensor) -> Any:
    work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
    work.wait()
    return x + 1


def all_reduce_coalesced(x: torch.Tensor) -> Any:
    y = x * 2
    dist.all_reduce_coalesced([x, y])
    return x + y


def broadcast(x: torch.Tensor) -> Any:
    y = x + 1
    dist.broadcast(y, 1)
    return y + 1


def asynchronous(x: torch.Tensor) -> Any:
    y = x + 1
    work = dist.broadcast(y, 1, async_op=True)
    work.wait()
    assert work.is_completed()
    assert work.is_success()
    return y + work.result()[0]


def future(x: torch.Tensor) -> Any:
    y = x + 1
    arrived = dist.broadcast(y, 1, async_op=True).get_future()
    return arrived.wait()[0] + 1


def then(x: torch.Tensor) -> Any:
    y = x + 1
    arrived = dist.broadcast(y, 1, async_op=True).get_future()
    return arrived.then(lambda done: done.value()[0] * 2).wait() + 1


def reduce(x: torch.Tensor) -> Any:
    y = x + 1
    dist.reduce(y, 0)
    return y + 1 if dist.get_rank() == 0 else x


def all_gather(x: torch.Tensor) -> Any:
    parts = [torch.empty_like(x) for _ in range(RANKS)]
    dist.all_gather(parts, x + 1)
    return parts[0] + parts[1]


def all_gather_uneven(x: torch.Tensor) -> Any:
    parts = [x.new_empty(rank + 1) for rank in range(RANKS)]
    dist.all_gather(parts, x[: dist.get_rank() + 1] + 1)
    return torch.cat(parts) + 1


def all_gather_into_tensor(x: torch.Tensor) -> Any:
    whole = x.new_empty(RANKS * len(x))
    dist.all_gather_into_tensor(whole, x + 1)
    return whole + 1


def all_gather_coalesced(x: torch.Tensor) -> Any:
    parts = [[torch.empty_like(x), torch.empty_like(x)] for _ in range(RANKS)]
    dist.all_gather_coalesced(parts, [x, x * 2])
    return parts[0][0] + parts[1][1]


def gather(x: torch.Tensor) -> Any:
    parts = [torch.empty_like(x) for _ in range(RANKS)] if dist.get_rank() == 0 else None
    dist.gather(x + 1, parts, 0)
    return parts[1] + 1 if parts else x + 1


def scatter(x: torch.Tensor) -> Any:
    part = torch.empty_like(x)
    dist.scatter(part, [x, x + 1] if dist.get_rank() == 0 else None, 0)
    return part + 1


def reduce_scatter(x: torch.Tensor) -> Any:
    part = torch.empty_like(x)
    dist.reduce_scatter(part, [x, x + 1])
    return part + 1


def reduce_scatter_tensor(x: torch.Tensor) -> Any:
    part = x.new_empty(len(x) // RANKS)
    dist.reduce_scatter_tensor(part, x + 1)
    return part + 1


def all_to_all(x: torch.Tensor) -> Any:
    parts = [torch.empty_like(x) for _ in range(RANKS)]
    dist.all_to_all(parts, [x, x + 1])
    return parts[0] + parts[1]


def all_to_all_single(x: torch.Tensor) -> Any:
    arrived = torch.empty_like(x)
    dist.all_to_all_single(arrived, x + 1)
    return arrived + 1


def all_to_all_splits(x: torch.Tensor) -> Any:
    me = dist.get_rank()
    arrived = x.new_empty([2, 6][me])
    dist.all_to_all_single(arrived, x + 1, [[1, 1], [3, 3]][me], [1, 3])
    return arrived + 1


def barrier(x: torch.Tensor) -> Any:
    dist.barrier()
    return x + 1


def messages(x: torch.Tensor) -> Any:
    y = x + 1
    if dist.get_rank() == 0:
        dist.send(y, 1)
        dist.recv(y, 1)
    else:
        z = torch.empty_like(y)
        dist.recv(z)
        dist.send(z * 2, 0)
    return y + 1


def asynchronous_messages(x: torch.Tensor) -> Any:
    y, peer = torch.empty_like(x), 1 - dist.get_rank()
    works = [dist.isend(x + 1, peer), dist.irecv(y, peer)]
    for work in works:
        work.wait()
    return y + 1


def batched_messages(x: torch.Tensor) -> Any:
    y, peer = torch.empty_like(x), 1 - dist.get_rank()
    messages = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return y + 1


def functional_calls(x: torch.Tensor) -> Any:
    group = dist.group.WORLD
    y = functional.all_reduce(x * 2, "sum", group)
    y = y + functional.all_gather_tensor(x, 0, group).sum()
    y = y + functional.reduce_scatter_tensor(torch.cat([y, y]), "sum", 0, group)
    y = y + functional.broadcast(x, 1, group)
    y = y + functional.all_to_all_single(x, None, None, group)
    y = y + functional.all_to_all_single(x, [2, 2], [2, 2], group)
    y = y + functional.permute_tensor(x, [1, 0], group)
    for part in functional.all_reduce_coalesced([x, y], "sum", group):
        y = y + part
    for part in functional.all_gather_into_tensor_coalesced([x], group):
        y = y + part.sum()
    for part in functional.reduce_scatter_tensor_coalesced([torch.cat([y, y])], "sum", [0], group):
        y = y + part
    return y + 1


def new_group(x: torch.Tensor) -> Any:
    group = dist.new_group([0, 1])
    dist.all_reduce(x, group=group)
    return x + 1


def hints(x: torch.Tensor) -> Any:
    with headrace.torch.background():
        dist.all_reduce(x)
    y = headrace.torch.empty(4).copy_(x)
    headrace.torch.step()
    return y + 1


CALLS: list[Callable[[torch.Tensor], Any]] = [
    all_reduce,
    average,
    all_reduce_coalesced,
    broadcast,
    asynchronous,
    future,
    then,
    reduce,
    all_gather,
    all_gather_uneven,
    all_gather_into_tensor,
    all_gather_coalesced,
    gather,
    scatter,
    reduce_scatter,
    reduce_scatter_tensor,
    all_to_all,
    all_to_all_single,
    all_to_all_splits,
    barrier,
    messages,
    asynchronous_messages,
    batched_messages,
    functional_calls,
    new_group,
    hints,
]


def model(normed: bool) -> nn.Module:
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(16) if normed else nn.ReLU()
    return nn.Sequential(nn.Linear(16, 16), middle, nn.Linear(16, 4))


def trained(step: Callable[[torch.Tensor], torch.Tensor], parameters: list[nn.Parameter]) -> Any:
    optimizer = torch.optim.SGD(parameters, 0.1)
    for round_ in range(3):
        seed = torch.Generator().manual_seed(10 * round_ + dist.get_rank())
        step(torch.randn(8, 16, generator=seed)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    values = [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in parameters]
    return torch.cat([value.reshape(-1) for value in values])


Compile = Callable[[Any], Any]


def ddp_inside(compiled: Compile) -> Any:
    outer = DistributedDataParallel(model(normed=False))
    return trained(compiled(outer), list(outer.parameters()))


def ddp_inside_normed(compiled: Compile) -> Any:
    outer = DistributedDataParallel(model(normed=True))
    return trained(compiled(outer), list(outer.parameters()))


def ddp_outside(compiled: Compile) -> Any:
    outer = DistributedDataParallel(compiled(model(normed=False)))
    return trained(outer, list(outer.parameters()))


def ddp_outside_normed(compiled: Compile) -> Any:
    outer = DistributedDataParallel(compiled(model(normed=True)))
    return trained(outer, list(outer.parameters()))


def sharded(compiled: Compile) -> Any:
    outer = model(normed=False)
    fully_shard(outer)
    return trained(compiled(outer), list(outer.parameters()))


TRAININGS = [ddp_inside, ddp_inside_normed, ddp_outside, ddp_outside_normed, sharded]


def compiled_same(function: Callable[[torch.Tensor], Any]) -> None:
    expected = function(own())
    found = torch.compile(function, backend="aot_eager")(own())
    torch.testing.assert_close(found, expected)


def training_same(training: Callable[[Compile], Any], backend: str = "aot_eager") -> None:
    expected = training(lambda module: module)
    found = training(lambda module: torch.compile(module, backend=backend))
    torch.testing.assert_close(found, expected)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group(sys.argv[1], timeout=timedelta(seconds=60))
    checks = {function.__name__: lambda f=function: compiled_same(f) for function in CALLS}
    checks |= {function.__name__: lambda f=function: training_same(f) for function in TRAININGS}
    checks["inductor"] = lambda: training_same(ddp_inside_normed, "inductor")
    results = {}
    for name, check in checks.items():
        torch.compiler.reset()
        try:
            check()
            results[name] = ""
        except Exception:  # every check is to be reported
            results[name] = traceback.format_exc()
    print("RESULTS", json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
