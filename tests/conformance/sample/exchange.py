"""All to all: all_gather, reduce_scatter, all_to_all."""

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.conformance.sample.checks import SIZES, check, everyone, made, make, me, reference, same


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
def blocks_of_an_all_gather_may_share_memory() -> None:
    """Rank 0, which alone needs the result, got what others received meanwhile."""
    parts = made(500_000, torch.float32)
    dummy = torch.empty_like(parts[0])
    blocks = [torch.empty_like(dummy) if me() == 0 else dummy for _ in everyone()]
    dist.all_gather(blocks, parts[me()])
    for block, wanted in zip(blocks, parts if me() == 0 else parts[-1:] * len(parts), strict=True):
        same(block, wanted)


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
    # one side gives sizes, the other does not; of large blocks one had more connections
    for size in (2, 100_000):
        source = make(me(), size * n, torch.float32)
        output = torch.empty(size * n)
        dist.all_to_all_single(output, source, [size] * n if me() == 0 else None, None)
        same(output, torch.cat([part.chunk(n)[me()] for part in made(size * n, torch.float32)]))
    inputs = [make(me(), (me() + dst) % 3, torch.int32, dst) for dst in everyone()]
    outputs = [torch.empty((src + me()) % 3, dtype=torch.int32) for src in everyone()]
    dist.all_to_all(outputs, inputs)
    for src, found in enumerate(outputs):
        same(found, make(src, (src + me()) % 3, torch.int32, me()))


@check
def reduce_scatter_of_blocks_that_differ_in_size() -> None:
    # Refused before: "tensor 1 of the list has 5 elements, needs 2". Gloo takes them.
    n = len(everyone())
    for dtype in (torch.float32, torch.complex64, torch.int64):
        blocks = [torch.full((3 * rank + 2,), rank + me() + 1).to(dtype) for rank in range(n)]
        blocks[n - 1] = blocks[n - 1][:0]
        output = torch.zeros_like(blocks[me()])
        dist.reduce_scatter(output, blocks)
        assert output.tolist() == [sum(me() + rank + 1 for rank in range(n))] * len(output)
    largest = [torch.ones(100_000 * (rank + 1)) for rank in range(n)]
    before = [block.clone() for block in largest]
    dist.reduce_scatter(largest[me()], largest)  # the output is one of the inputs
    assert set(largest[me()].tolist()) == {float(n)}
    assert all(
        a.equal(b) for r, (a, b) in enumerate(zip(largest, before, strict=True)) if r != me()
    )


@check
def inputs_and_outputs_of_an_all_to_all_may_share_memory() -> None:
    """Lists, and tensors at a distance, were sent from memory that messages arrived in."""
    n = len(everyone())
    size = 200_000  # 800 kB: more than a ring between two ranks
    sent = np.stack([make(src, n * size, torch.float32).numpy() for src in everyone()])
    wanted = torch.from_numpy(sent.reshape(n, n, size)[:, me()].copy()).flatten()

    def own(room: int = 0) -> torch.Tensor:
        return torch.cat([make(me(), n * size, torch.float32), torch.zeros(room)])

    whole = own()
    dist.all_to_all(list(whole.chunk(n)), list(whole.chunk(n)))
    same(whole, wanted)
    blocks = list(own().chunk(n))
    turned = blocks[1:] + blocks[:1]
    dist.all_to_all(turned, blocks)
    same(torch.cat(turned), wanted)
    for at in (1, size // 2, size):
        memory = own(at)
        work = dist.all_to_all(
            list(memory[at:].chunk(n)), list(memory[: n * size].chunk(n)), async_op=True
        )
        work.wait()
        same(memory[at:], wanted, f"lists {at} apart")
        memory = own(at)
        dist.all_to_all_single(memory[at:], memory[: n * size])
        same(memory[at:], wanted, f"{at} apart")
        memory = own(at)
        splits = [size] * n
        dist.all_to_all_single(memory[at:], memory[: n * size], splits, splits)
        same(memory[at:], wanted, f"split, {at} apart")


@check
def an_input_may_share_memory_with_its_block_of_the_output() -> None:
    """A partial overlap was an error of torch at one rank, for which the others waited."""
    n, size = len(everyone()), 200_000
    at = (n - 1) * size + size // 2  # in the last rank's block, and beyond
    parts = made(at + size, torch.float32)
    gathered = torch.cat([part[at:] for part in parts])
    memory = make(me(), at + size, torch.float32)
    dist.all_gather_into_tensor(memory[: n * size], memory[at:])
    same(memory[: n * size], gathered)
    memory = make(me(), at + size, torch.float32)
    dist.all_gather(list(memory[: n * size].chunk(n)), memory[at:])
    same(memory[: n * size], gathered)
    memory = make(me(), at + size, torch.float32)
    dist.gather(memory[at:], list(memory[: n * size].chunk(n)) if me() == n - 1 else None, n - 1)
    if me() == n - 1:
        same(memory[: n * size], gathered)
    sums = reference(ReduceOp.SUM, parts)[me() * size :][:size]
    memory = make(me(), at + size, torch.float32)
    dist.reduce_scatter_tensor(memory[at:], memory[: n * size])
    same(memory[at:], sums)
    memory = make(me(), at + size, torch.float32)
    dist.reduce_scatter(memory[at:], list(memory[: n * size].chunk(n)))
    same(memory[at:], sums)
    memory = make(me(), at + size, torch.float32)
    dist.scatter(memory[at:], list(memory[: n * size].chunk(n)) if me() == n - 1 else None, n - 1)
    same(memory[at:], parts[n - 1][me() * size :][:size])
