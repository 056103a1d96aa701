"""One rank of the conformance sample, run by test_torch_backend.py.

Every check runs on every rank in this order; a check that fails on one rank but not on others
still lets the others go on, as every check makes the same calls.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

CHECKS: list[Callable[[], None]] = []
SLOW: list[Callable[[], None]] = []
SIZES = (0, 1, 7, 1000, 70_001)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128)


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def slow(function: Callable[[], None]) -> Callable[[], None]:
    """A check that imports much of torch; left out with --quick."""
    SLOW.append(function)
    return check(function)


def me() -> int:
    return dist.get_rank()


def everyone() -> range:
    return range(dist.get_world_size())


def make(rank: int, size: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Small whole numbers that every rank can make for every rank."""
    generator = torch.Generator().manual_seed(1000 * salt + rank + 1)
    values = torch.randint(0, 4, (size,), generator=generator)
    if dtype.is_complex:
        return torch.complex(values.double(), values.flip(0).double()).to(dtype)
    return values.to(dtype)


def made(size: int, dtype: torch.dtype, salt: int = 0) -> list[torch.Tensor]:
    return [make(rank, size, dtype, salt) for rank in everyone()]


def same(found: torch.Tensor, wanted: torch.Tensor, what: str = "") -> None:
    assert found.dtype == wanted.dtype, f"{what}: {found.dtype} is not {wanted.dtype}"
    if found.dtype in FLOAT8:  # which torch does not compare
        found, wanted = found.view(torch.uint8), wanted.view(torch.uint8)
    assert torch.equal(found, wanted), f"{what}: {found} is not {wanted}"


@contextmanager
def raises(kind: type[BaseException], *words: str):
    try:
        yield
    except kind as error:
        assert all(word in str(error) for word in words), f"{error} does not say {words}"
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


def reference(op: ReduceOp, parts: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(parts)
    dtype = stacked.dtype
    if dtype in UNSIGNED:  # torch does not add them
        return reference(op, [part.long() for part in parts]).to(dtype)
    if dtype is torch.bool:
        any_, all_ = stacked.any(0), stacked.all(0)
        odd = stacked.long().sum(0) % 2 == 1
        return {
            ReduceOp.SUM: any_, ReduceOp.PRODUCT: all_, ReduceOp.MIN: all_, ReduceOp.MAX: any_,
            ReduceOp.BAND: all_, ReduceOp.BOR: any_, ReduceOp.BXOR: odd,
        }[op]  # fmt: skip
    if op == ReduceOp.SUM:
        return stacked.sum(0, dtype=dtype)
    if op == ReduceOp.PRODUCT:
        return stacked.prod(0, dtype=dtype)
    if op == ReduceOp.MIN:
        return stacked.amin(0)
    if op == ReduceOp.MAX:
        return stacked.amax(0)
    wanted = parts[0].clone()
    for part in parts[1:]:
        if op == ReduceOp.BAND:
            wanted &= part
        elif op == ReduceOp.BOR:
            wanted |= part
        else:
            wanted ^= part
    return wanted


ORDINARY = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)
BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


# ---- all_reduce -----------------------------------------------------------------------------


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
    with raises(RuntimeError, "single memory location"):
        dist.all_reduce(torch.ones(1).expand(3))


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


# ---- one to all, all to one -----------------------------------------------------------------


@check
def broadcast() -> None:
    for dtype in (*FLOATS, *FLOAT8, *INTEGERS, *UNSIGNED, *COMPLEX, torch.bool):
        for root in everyone():
            for size in SIZES:
                tensor = make(me(), size, dtype, root)
                dist.broadcast(tensor, root)
                same(tensor, make(root, size, dtype, root), f"{dtype} {root} {size}")


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


# ---- all to all -----------------------------------------------------------------------------


@check
def all_gather() -> None:
    n = len(everyone())
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64):
        for size in SIZES:
            own, parts = make(me(), size, dtype), made(size, dtype)
            blocks = [torch.empty(size, dtype=dtype) for _ in everyone()]
            dist.all_gather(blocks, own)
            for block, wanted in zip(blocks, parts, strict=True):
                same(block, wanted, f"{dtype} {size}")
            whole = torch.empty(n * size, dtype=dtype)
            dist.all_gather_into_tensor(whole, own)
            same(whole, torch.cat(parts))
            views = torch.zeros(n * size, dtype=dtype)
            if size:
                dist.all_gather(list(views.chunk(n)), own)
                same(views, torch.cat(parts))
            in_place = torch.zeros(n * size, dtype=dtype)
            mine = in_place[me() * size : (me() + 1) * size]
            mine.copy_(own)
            dist.all_gather_into_tensor(in_place, mine)
            same(in_place, torch.cat(parts))
    stacked = torch.empty(n, 5).t()
    columns = list(stacked.unbind(1))
    turned = torch.empty(5, n)
    dist.all_gather([turned[:, r] for r in everyone()], make(me(), 5, torch.float32))
    same(turned, torch.stack(made(5, torch.float32), 1))
    assert len(columns) == n


@check
def all_gather_of_blocks_that_differ_in_size() -> None:
    blocks = [torch.empty(3 * r + 1) for r in everyone()]
    dist.all_gather(blocks, make(me(), 3 * me() + 1, torch.float32))
    for r, block in enumerate(blocks):
        same(block, make(r, 3 * r + 1, torch.float32))


@check
def all_gather_coalesced() -> None:
    n = len(everyone())
    sizes = (4, 0, 33)
    own = [make(me(), size, torch.float32, size) for size in sizes]
    outputs = [torch.empty(n * size) for size in sizes]
    with dist._coalescing_manager():
        for output, part in zip(outputs, own, strict=True):
            dist.all_gather_into_tensor(output, part)
    for output, size in zip(outputs, sizes, strict=True):
        same(output, torch.cat(made(size, torch.float32, size)))
    lists = [[torch.empty(size) for size in sizes] for _ in everyone()]
    dist.all_gather_coalesced(lists, own)
    for rank, parts in enumerate(lists):
        for part, size in zip(parts, sizes, strict=True):
            same(part, make(rank, size, torch.float32, size))


@check
def reduce_scatter_leaves_the_input_alone() -> None:
    n = len(everyone())
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for op in (ReduceOp.SUM, ReduceOp.MAX):
            for size in SIZES:
                source = make(me(), n * size, dtype)
                wanted = reference(op, made(n * size, dtype))[me() * size : (me() + 1) * size]
                output = torch.empty(size, dtype=dtype)
                dist.reduce_scatter_tensor(output, source, op)
                same(output, wanted, f"{dtype} {op} {size}")
                same(source, make(me(), n * size, dtype))
                blocks = [source[r * size : (r + 1) * size].clone() for r in everyone()]
                output = torch.empty(size, dtype=dtype)
                dist.reduce_scatter(output, blocks, op)
                same(output, wanted)
    halves = torch.empty(4)
    dist.reduce_scatter_tensor(halves, torch.full((n * 4,), float(me())), ReduceOp.AVG)
    assert torch.allclose(halves, torch.full((4,), sum(everyone()) / n))
    outputs = [torch.empty(size) for size in (3, 8)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.reduce_scatter_tensor(output, make(me(), n * len(output), torch.float32))
    for output in outputs:
        total = reference(ReduceOp.SUM, made(n * len(output), torch.float32))
        same(output, total.chunk(n)[me()])


@check
def all_to_all_of_equal_blocks() -> None:
    n = len(everyone())
    for dtype in (torch.float32, torch.int16, torch.complex64):
        for size in SIZES:
            source = make(me(), n * size, dtype)
            output = torch.empty(n * size, dtype=dtype)
            dist.all_to_all_single(output, source)
            parts = [part[me() * size : (me() + 1) * size] for part in made(n * size, dtype)]
            same(output, torch.cat(parts), f"{dtype} {size}")
            same(source, make(me(), n * size, dtype))


@check
def all_to_all_of_uneven_blocks() -> None:
    n = len(everyone())
    sends = [[(src + 2 * dst) % 4 for dst in everyone()] for src in everyone()]
    for columns in (1, 3):
        rows = sum(sends[me()])
        source = make(me(), rows * columns, torch.float32).view(rows, columns)
        receives = [sends[src][me()] for src in everyone()]
        output = torch.empty(sum(receives), columns)
        dist.all_to_all_single(output, source, receives, sends[me()])
        wanted = []
        for src in everyone():
            total = sum(sends[src])
            theirs = make(src, total * columns, torch.float32).view(total, columns)
            wanted.append(theirs.split(sends[src])[me()])
        same(output, torch.cat(wanted))
    # one side gives sizes, the other does not
    source = make(me(), 2 * n, torch.float32)
    output = torch.empty(2 * n)
    dist.all_to_all_single(output, source, [2] * n if me() == 0 else None, None)
    same(output, torch.cat([part[2 * me() : 2 * me() + 2] for part in made(2 * n, torch.float32)]))
    inputs = [make(me(), (me() + dst) % 3, torch.int32, dst) for dst in everyone()]
    outputs = [torch.empty((src + me()) % 3, dtype=torch.int32) for src in everyone()]
    dist.all_to_all(outputs, inputs)
    for src, found in enumerate(outputs):
        same(found, make(src, (src + me()) % 3, torch.int32, me()))


# ---- point to point -------------------------------------------------------------------------


@check
def send_and_receive() -> None:
    n = len(everyone())
    if n == 1:
        return
    if me() == 0:
        for dst in range(1, n):
            dist.send(make(0, 10, torch.float32, dst), dst, tag=dst)
            dist.send(make(0, 10, torch.float32, dst).view(2, 5).t(), dst, tag=50)
    else:
        second, first = torch.empty(5, 2), torch.empty(10)
        late = dist.irecv(second, 0, tag=50)
        assert dist.recv(first, 0, tag=me()) == 0
        late.wait()
        same(first, make(0, 10, torch.float32, me()))
        same(second, first.view(2, 5).t())
    empty = torch.empty(0)
    if me() == 0:
        dist.send(empty, 1)
    elif me() == 1:
        dist.recv(empty, 0)
    big = torch.full((300_000,), float(me()))
    if me() == 0:
        works = [dist.isend(big, dst) for dst in range(1, n)]
        for work in works:
            work.wait()
            assert work.is_completed()
    else:
        strided = torch.zeros(300_000, 2)[:, 1]
        dist.recv(strided, 0)
        same(strided, torch.zeros(300_000))


@check
def receive_from_anybody() -> None:
    n = len(everyone())
    if me() == 0:
        seen = set()
        for _ in range(n - 1):
            tensor = torch.empty(3)
            source = dist.recv(tensor, tag=7)
            same(tensor, torch.full((3,), float(source)))
            seen.add(source)
        assert seen == set(range(1, n))
    else:
        dist.send(torch.full((3,), float(me())), 0, tag=7)


@check
def batches_of_messages() -> None:
    n = len(everyone())
    if n == 1:
        return
    right, left = (me() + 1) % n, (me() - 1) % n
    landing = [torch.empty(50), torch.empty(50_000)]
    ops = []
    for index, tensor in enumerate(landing):
        ops.append(dist.P2POp(dist.irecv, tensor, left))
        ops.append(dist.P2POp(dist.isend, make(me(), len(tensor), torch.float32, index), right))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for index, tensor in enumerate(landing):
        same(tensor, make(left, len(tensor), torch.float32, index))
    future = dist.irecv(landing[0], left).get_future()
    dist.isend(make(me(), 50, torch.float32, 9), right)  # nobody keeps this work
    future.wait()
    same(future.value()[0], make(left, 50, torch.float32, 9))


# ---- asynchronous work ----------------------------------------------------------------------


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


# ---- groups, objects ------------------------------------------------------------------------


@check
def groups_of_some_ranks() -> None:
    n = len(everyone())
    for members in ([r for r in everyone() if r % 2 == 0], list(reversed(everyone())), [n - 1]):
        group = dist.new_group(members)
        if me() not in members:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
            continue
        ranks = dist.get_process_group_ranks(group)
        tensor = make(me(), 33, torch.float32)
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.stack([make(r, 33, torch.float32) for r in ranks]).sum(0))
        root = members[-1]
        spread = make(me(), 4, torch.float32)
        dist.broadcast(spread, root, group=group)
        same(spread, make(root, 4, torch.float32))
        blocks = [torch.empty(4) for _ in ranks]
        dist.all_gather(blocks, make(me(), 4, torch.float32), group=group)
        for rank, block in zip(ranks, blocks, strict=True):
            same(block, make(rank, 4, torch.float32))
        dist.barrier(group=group)
        assert dist.get_backend(group) == "headrace"
        dist.destroy_process_group(group)
    halves, _ = dist.new_subgroups(group_size=1)
    alone = torch.full((3,), float(me()))
    dist.all_reduce(alone, group=halves)
    out = torch.empty(3)
    dist.all_to_all_single(out, alone, group=halves)
    assert out.tolist() == [float(me())] * 3


@check
def groups_at_the_same_time() -> None:
    groups = [dist.new_group(list(everyone())) for _ in range(3)]
    works = []
    for i, group in enumerate(groups * 3):
        tensor = make(me(), 20_000, torch.float32, i)
        works.append((i, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
    for i, tensor, work in reversed(works):
        work.wait()
        same(tensor, reference(ReduceOp.SUM, made(20_000, torch.float32, i)))
    for group in groups:
        dist.destroy_process_group(group)


@check
def objects() -> None:
    n = len(everyone())
    thing = {"rank": me(), "text": "x" * (10 * me())}
    things: list[object] = [None] * n
    dist.all_gather_object(things, thing)
    assert [t["rank"] for t in things] == list(everyone())  # type: ignore[index]
    assert len(things[-1]["text"]) == 10 * (n - 1)  # type: ignore[index]
    listed = [thing, "second"] if me() == 0 else [None, None]
    dist.broadcast_object_list(listed, 0)
    assert listed == [{"rank": 0, "text": ""}, "second"]
    gathered: list[object] | None = [None] * n if me() == 0 else None
    dist.gather_object(me(), gathered, 0)
    assert gathered is None or gathered == list(everyone())
    output: list[object] = [None]
    dist.scatter_object_list(output, [f"for {r}" for r in everyone()] if me() == 0 else None, 0)
    assert output == [f"for {me()}"]
    if n > 1 and me() < 2:
        carried = ["hello", 3] if me() == 0 else [None, None]
        (dist.send_object_list if me() == 0 else dist.recv_object_list)(carried, 1 - me())
        assert carried == ["hello", 3]


@check
def barriers() -> None:
    dist.barrier()
    group = dist.new_group(list(everyone()))
    dist.monitored_barrier(group, timeout=timedelta(seconds=20))
    last = len(everyone()) - 1
    if last and me() != last:
        with raises(RuntimeError, f"rank {last}", "did not come"):
            dist.monitored_barrier(group, timeout=timedelta(seconds=0.5), wait_all_ranks=True)
    dist.barrier()
    dist.destroy_process_group(group)


@check
def identity() -> None:
    group = dist.distributed_c10d._get_default_group()
    assert dist.get_backend() == "headrace"
    assert group.name() == "headrace"
    assert group.rank() == me()
    assert group.size() == len(everyone())
    assert group._device_types == [torch.device("cpu")]
    dist.set_timeout(timedelta(seconds=45))
    dist.all_reduce(torch.ones(1))


# ---- what torch builds on it ----------------------------------------------------------------


@slow
def functional_collectives() -> None:
    n = len(everyone())
    group = dist.group.WORLD
    own = make(me(), 6, torch.float32)
    parts = made(6, torch.float32)
    same(functional.all_reduce(own, "sum", group).wait(), torch.stack(parts).sum(0))
    averaged = functional.all_reduce(own, "avg", group)
    assert torch.allclose(averaged + 0, torch.stack(parts).mean(0))
    same(functional.all_gather_tensor(own, 0, group) + 0, torch.cat(parts))
    source = torch.cat([own] * n)
    same(functional.reduce_scatter_tensor(source, "sum", 0, group) + 0, torch.stack(parts).sum(0))
    same(functional.broadcast(own, 0, group) + 0, parts[0])
    swapped = functional.all_to_all_single(torch.full((n,), float(me())), None, None, group)
    assert (swapped + 0).tolist() == list(everyone())
    for found, size in zip(
        functional.all_reduce_coalesced(
            [make(me(), 3, torch.float32), make(me(), 4, torch.float32)], "sum", group
        ),
        (3, 4),
        strict=True,
    ):
        same(found + 0, torch.stack(made(size, torch.float32)).sum(0))
    for found, size in zip(
        functional.all_gather_into_tensor_coalesced(
            [make(me(), 3, torch.float32), make(me(), 4, torch.float32)], group
        ),
        (3, 4),
        strict=True,
    ):
        same(found + 0, torch.cat(made(size, torch.float32)))
    (found,) = functional.reduce_scatter_tensor_coalesced([source], "sum", [0], group)
    same(found + 0, torch.stack(parts).sum(0))


def network(extra: bool = False) -> nn.Module:
    torch.manual_seed(5)
    layers = [nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*layers)
            self.unused = nn.Linear(7, 7) if extra else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    return Net()


def train(model: nn.Module, *, accumulate: bool = False, steps: int = 4) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + me())
        x = torch.randn(16, 20, generator=generator)
        y = torch.randint(0, 10, (16,), generator=generator)
        syncing = not accumulate or step % 2 == 1
        with nullcontext() if syncing else model.no_sync():
            nn.functional.cross_entropy(model(x), y).backward()
        if syncing:
            optimizer.step()
            optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


@slow
def distributed_data_parallel_trains_as_with_gloo() -> None:
    gloo = dist.new_group(backend="gloo")
    variants = (
        {},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.002},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"broadcast_buffers": False, "bucket_cap_mb": 0.001},
    )
    for options in variants:
        extra = "find_unused_parameters" in options
        results = []
        for group in (None, gloo):
            model = DistributedDataParallel(network(extra), process_group=group, **options)
            results.append(train(model, accumulate=not options))
        for ours, theirs in zip(*results, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6), f"{options}"
        copies = [torch.empty_like(results[0][0]) for _ in everyone()]
        dist.all_gather(copies, results[0][0])
        assert all(torch.equal(copy, copies[0]) for copy in copies), f"replicas differ: {options}"
    dist.destroy_process_group(gloo)


@slow
def distributed_data_parallel_with_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    for hook in (default_hooks.allreduce_hook, default_hooks.bf16_compress_hook):
        model = DistributedDataParallel(network(), bucket_cap_mb=0.002)
        model.register_comm_hook(None, hook)
        assert all(torch.isfinite(parameter).all() for parameter in train(model, steps=2))
    model = DistributedDataParallel(network())
    with model.join():
        for _ in range(1 + me() % 2):  # uneven inputs
            model(torch.ones(4, 20)).sum().backward()


@slow
def fully_sharded_trains_as_with_gloo() -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    gloo = dist.new_group(backend="gloo")
    results = []
    for group in (dist.group.WORLD, gloo):
        torch.manual_seed(6)
        model = nn.Sequential(nn.Linear(20, 37), nn.ReLU(), nn.Linear(37, 10))
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            generator = torch.Generator().manual_seed(100 * step + me())
            x = torch.randn(8, 20, generator=generator)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([parameter.full_tensor().detach() for parameter in model.parameters()])
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    dist.destroy_process_group(gloo)


@slow
def distributed_tensors() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    n = len(everyone())
    mesh = init_device_mesh("cpu", (n,))
    whole = torch.arange(float(n * 6)).view(n, 6)
    placed = distribute_tensor(whole, mesh, [Shard(0)])
    same(placed.full_tensor(), whole)
    same(placed.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert placed.sum().full_tensor().item() == whole.sum().item()
    if n % 2 == 0:
        grid = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("outer", "inner"))
        tensor = torch.full((2,), float(me()))
        dist.all_reduce(tensor, group=grid.get_group("inner"))
        row = me() // (n // 2)
        assert tensor[0].item() == sum(range(row * (n // 2), (row + 1) * (n // 2)))


# ---- mistakes -------------------------------------------------------------------------------


@check
def mistakes_get_clear_errors() -> None:
    n = len(everyone())
    with raises(ValueError, "sparse", "dense"):
        dist.all_reduce(torch.eye(3).to_sparse())
    with raises(ValueError, "meta", "CPU"):
        dist.broadcast(torch.empty(3, device="meta"), 0)
    with raises(ValueError, "PREMUL"):
        dist.all_reduce(torch.ones(3), dist._make_nccl_premul_sum(2.0))
    with raises(ValueError, "float8_e8m0fnu"):
        dist.all_reduce(torch.ones(3).to(torch.float8_e8m0fnu))
    with raises(ValueError, "float32"):
        dist.all_reduce(torch.ones(3), ReduceOp.BAND)
    with raises(ValueError, "one per rank"):
        dist.all_gather([torch.ones(3)] * (n + 1), torch.ones(3))
    with raises(ValueError, "elements"):
        dist.all_gather_into_tensor(torch.empty(3 * n + 1), torch.ones(3))
    with raises(ValueError, "dtype"):
        dist.reduce_scatter_tensor(torch.empty(3), torch.ones(3 * n, dtype=torch.float64))
    with raises(ValueError, "add up to"):
        dist.all_to_all_single(torch.empty(n), torch.ones(n), [1] * n, [2] * n)
    dist.all_reduce(torch.ones(1))  # and none of them broke the group


@check
def lengths_that_only_the_sender_knows() -> None:
    from headrace.collectives.run.variable import all_gather_variable, all_to_all_variable

    n, limit = len(everyone()), 3 * len(everyone())
    blocks = all_gather_variable(torch.full((3 * me(), 2), float(me())), limit)
    for rank, block in enumerate(blocks):
        assert torch.equal(block, torch.full((3 * rank, 2), float(rank)))
    sent = [torch.full((me() + dst,), 10 * me() + dst) for dst in everyone()]
    for src, block in enumerate(all_to_all_variable(sent, limit)):
        assert torch.equal(block, torch.full((src + me(),), 10 * src + me()))
    # one rank is over the limit: all are told, by the same call
    with raises(RuntimeError, f"rank {n - 1} brings {limit} rows", f"limit is {limit - 1}"):
        all_gather_variable(torch.ones(limit if me() == n - 1 else 1), limit - 1)
    with raises(RuntimeError, "limit"):
        all_to_all_variable(
            [torch.ones(limit if me() == 0 and dst == n - 1 else 1) for dst in everyone()], 1
        )
    if n > 1:
        with raises(ValueError, "limits differ"):
            all_gather_variable(torch.ones(1), 5 + me())


@check
def aggregation_by_any_function() -> None:
    from headrace.collectives.run.aggregate import aggregate

    for size in SIZES:
        tensor = make(me(), size, torch.float32)
        aggregate(tensor, lambda rows: rows.median(dim=0).values)
        assert torch.equal(tensor, torch.stack(made(size, torch.float32)).median(dim=0).values)
    # neither associative nor commutative: the order of the ranks counts
    tensor = make(me(), 100, torch.float64)
    aggregate(
        tensor, lambda rows: (rows * torch.arange(1.0, len(rows) + 1).double()[:, None]).sum(0)
    )
    assert torch.equal(tensor, sum((k + 1) * one for k, one in enumerate(made(100, torch.float64))))


@check
def calls_in_the_background() -> None:
    import headrace.torch

    large, small = torch.ones(1_000_000), torch.ones(10)
    with headrace.torch.background():
        work = dist.all_reduce(large, async_op=True)
    dist.all_reduce(small)
    work.wait()
    assert (large == len(everyone())).all()
    assert (small == len(everyone())).all()


@slow
def the_profiler_shows_calls_from_begin_to_end() -> None:
    from torch.profiler import profile

    tensor = torch.ones(1_000_000)
    with profile() as found:
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        dist.broadcast(torch.ones(10), 0, async_op=True).wait()
        work.wait()
        work.get_future().wait()
    names = [event.name for event in found.events() if event.name.startswith("headrace:")]
    assert sorted(names) == ["headrace:allreduce", "headrace:allreduce", "headrace:broadcast"], (
        names
    )
    spans = [event for event in found.events() if event.name == "headrace:allreduce"]
    # over a millisecond, unless there is nobody to exchange with
    assert len(everyone()) == 1 or all(span.cpu_time_total > 100 for span in spans)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("headrace", timeout=timedelta(seconds=60))
    results: dict[str, str] = {}
    start = time.monotonic()
    quick = "--quick" in sys.argv
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    for function in CHECKS:
        if (wanted and function.__name__ not in wanted) or (quick and function in SLOW):
            continue
        print(f"[{me()}] {time.monotonic() - start:.1f} s {function.__name__}", flush=True)
        try:
            function()
            results[function.__name__] = ""
        except Exception:  # every check is to be reported
            results[function.__name__] = traceback.format_exc()
    dist.barrier()
    dist.destroy_process_group()
    print("RESULTS", json.dumps(results), flush=True)


if __name__ == "__main__":
    import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed

    main()
