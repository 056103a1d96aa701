"""all_reduce: every type and operator, and tensors of every shape."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp

from tests.conformance.sample.checks import (
    BITWISE,
    COMPLEX,
    FLOAT8,
    FLOATS,
    INTEGERS,
    ORDINARY,
    SIZES,
    UNSIGNED,
    check,
    everyone,
    made,
    make,
    me,
    raises,
    reference,
    same,
)


@check
def all_reduce_of_every_type_and_operator() -> None:
    for dtype in (*FLOATS, *INTEGERS, *UNSIGNED, torch.bool):
        ops = ORDINARY if dtype.is_floating_point else (*ORDINARY, *BITWISE)
        for op in ops:
            for size in SIZES[:4]:
                tensor = make(me(), size, dtype)
                dist.all_reduce(tensor, op)
                same(tensor, reference(op, made(size, dtype)), f"{dtype} {op} {size}")


@check
def all_reduce_of_many_sizes() -> None:
    for size in (*range(40), 4095, 4097, 16_385, 70_001, 1_000_003):
        tensor = make(me(), size, torch.float32, salt=size)
        dist.all_reduce(tensor)
        same(tensor, reference(ReduceOp.SUM, made(size, torch.float32, salt=size)), f"{size}")


@check
def all_reduce_agrees_on_random_floats() -> None:
    for size in (5, 5000, 300_000):
        generator = torch.Generator().manual_seed(me())
        tensor = torch.randn(size, generator=generator)
        parts = [torch.randn(size, generator=generator.manual_seed(r)) for r in everyone()]
        dist.all_reduce(tensor)
        bound = 1e-6 * torch.stack(parts).abs().sum(0)
        assert ((tensor - torch.stack(parts).sum(0)).abs() <= bound).all()
        copies = [torch.empty_like(tensor) for _ in everyone()]
        dist.all_gather(copies, tensor)
        for copy in copies:  # DDP's replicas must not drift apart
            same(copy, tensor, "bitwise agreement")


@check
def average() -> None:
    for dtype in FLOATS:
        for size in SIZES:
            tensor = make(me(), size, dtype)
            dist.all_reduce(tensor, ReduceOp.AVG)
            wanted = torch.stack(made(size, dtype)).double().mean(0)
            limit = 2 * torch.finfo(dtype).eps * 4
            assert ((tensor.double() - wanted).abs() <= limit).all(), f"{dtype} {size}"
    with raises(ValueError, "AVG", "bool"):
        dist.all_reduce(torch.ones(2, dtype=torch.bool), ReduceOp.AVG)


@check
def float8() -> None:
    """Torch does not compute with these; with no more than 3 in all every sum is exact."""
    n = len(everyone())
    for dtype in FLOAT8:
        for size in SIZES[:4]:
            values = [((make(r, size, torch.float32) > 1) & (r < 3)).float() for r in everyone()]
            stacked = torch.stack(values)
            for op, wanted in (
                (ReduceOp.SUM, stacked.sum(0)),
                (ReduceOp.PRODUCT, stacked.prod(0)),
                (ReduceOp.MIN, stacked.amin(0)),
                (ReduceOp.MAX, stacked.amax(0)),
                (ReduceOp.AVG, stacked.sum(0) / n),
            ):
                tensor = values[me()].to(dtype)
                dist.all_reduce(tensor, op)
                same(tensor, wanted.to(dtype), f"{dtype} {op} {size}")


@check
def complex_numbers() -> None:
    for dtype in COMPLEX:
        tensor = make(me(), 9, dtype)
        dist.all_reduce(tensor)
        same(tensor, torch.stack(made(9, dtype)).sum(0))
        gathered = [torch.empty(9, dtype=dtype) for _ in everyone()]
        dist.all_gather(gathered, make(me(), 9, dtype))
        for part, wanted in zip(gathered, made(9, dtype), strict=True):
            same(part, wanted)
        total = make(me(), 9, dtype)
        dist.reduce(total, 0)
        same(total, torch.stack(made(9, dtype)).sum(0) if me() == 0 else make(me(), 9, dtype))


@check
def tensors_that_are_not_contiguous() -> None:
    grid = make(me(), 60, torch.float32).view(6, 10)
    wanted = reference(ReduceOp.SUM, made(60, torch.float32)).view(6, 10)
    turned = grid.clone().t()
    dist.all_reduce(turned)
    same(turned, wanted.t())
    strided = grid.clone()
    dist.all_reduce(strided[:, ::3])
    same(strided[:, ::3], wanted[:, ::3])
    same(strided[:, 1], grid[:, 1])
    asynchronous = grid.clone().t()
    dist.all_reduce(asynchronous, async_op=True).wait()
    same(asynchronous, wanted.t())
    spread = grid.clone().t()
    dist.broadcast(spread, 0)
    same(spread, make(0, 60, torch.float32).view(6, 10).t())


@check
def parameters_and_zero_dimensions() -> None:
    parameter = nn.Parameter(torch.full((3,), float(me() + 1)))
    dist.all_reduce(parameter)
    assert parameter.detach().tolist() == [sum(r + 1 for r in everyone())] * 3
    taken = nn.Parameter(torch.zeros(2))
    dist.scatter(taken, made(2, torch.float32) if me() == 0 else None, 0)
    same(taken.detach(), make(me(), 2, torch.float32))
    dist.reduce_scatter_tensor(taken, torch.ones(2 * len(everyone())))
    assert taken.tolist() == [len(everyone())] * 2
    scalar = torch.tensor(float(me()))
    dist.all_reduce(scalar)
    assert scalar.item() == sum(everyone())


@check
def all_reduce_coalesced() -> None:
    tensors = [make(me(), size, torch.float64, size) for size in (3, 0, 100, 5000)]
    dist.all_reduce_coalesced(tensors)
    for tensor in tensors:
        size = len(tensor)
        same(tensor, reference(ReduceOp.SUM, made(size, torch.float64, size)))
    with dist._coalescing_manager(async_ops=True) as manager:
        again = [make(me(), size, torch.float32, size) for size in (4, 9)]
        for tensor in again:
            dist.all_reduce(tensor, async_op=False)
    manager.wait()
    for tensor in again:
        size = len(tensor)
        same(tensor, reference(ReduceOp.SUM, made(size, torch.float32, size)))
    region = torch.full((50_000,), 1.0)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.all_reduce(region)
    manager.wait()
    same(region, torch.full((50_000,), float(len(everyone()))))


@check
def sums_of_what_every_rank_multiplies() -> None:
    """PREMUL_SUM: every rank's values times its factor, which may differ, are summed."""
    n = len(everyone())
    for as_tensor in (False, True):
        for dtype in (*FLOATS, torch.complex64):
            parts = [make(rank, 20 * n, dtype) for rank in everyone()]
            factors = [0.5 * (rank + 1) for rank in everyone()]
            wanted = sum(part * factor for part, factor in zip(parts, factors, strict=True))
            factor = torch.tensor([factors[me()]]) if as_tensor else factors[me()]
            op = dist._make_nccl_premul_sum(factor)
            own = parts[me()].clone()
            dist.all_reduce(own, op)
            same(own, wanted)
            own = parts[me()].clone()
            dist.all_reduce(own, op, async_op=True).wait()
            same(own, wanted)
            turned = parts[me()].clone().view(n, 20).t()
            dist.all_reduce(turned, op)
            same(turned, wanted.view(n, 20).t())
            pair = [parts[me()].clone(), parts[me()][:3].clone()]
            dist.all_reduce_coalesced(pair, op)
            same(torch.cat(pair), torch.cat([wanted, wanted[:3]]))
            own = parts[me()].clone()
            dist.reduce(own, n - 1, op)
            same(own, wanted if me() == n - 1 else parts[me()])
            source, output = parts[me()].clone(), torch.empty(20, dtype=dtype)
            dist.reduce_scatter_tensor(output, source, op)
            same(output, wanted[20 * me() :][:20])
            dist.reduce_scatter(output, list(source.chunk(n)), op)
            same(output, wanted[20 * me() :][:20])
            same(source, parts[me()])
    # of the same type and size, with another factor
    for factor in (2.0, 3.0):
        own = torch.ones(4)
        dist.all_reduce(own, dist._make_nccl_premul_sum(factor))
        same(own, torch.full((4,), n * factor))
