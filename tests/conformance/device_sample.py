"""One rank of the checks of tensors that are not in host memory, run by test_device.py.

Its arguments are the device and the backend. The device "cuda" is GPU 0 for all ranks; "cpu" is the
double of `absent_device`. Nothing here waits for the GPU but what a check says it waits for.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

from tests.conformance import absent_device

CHECKS: list[Callable[[], None]] = []
DEVICE = torch.device("cuda", 0) if "cuda" in sys.argv[1:2] else torch.device("cpu")
SHARED = "," in "".join(sys.argv[2:3])  # with another backend's part in the group
CYCLES = 50_000_000  # some 30 ms of a GPU's time


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def me() -> int:
    return dist.get_rank()


def count() -> int:
    return dist.get_world_size()


def filled(size: int, value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((size,), value, dtype=dtype, device=DEVICE)


def room(*shape: int) -> torch.Tensor:
    return torch.full(shape, -1.0, device=DEVICE)


def keep_busy() -> None:
    """Let what the current stream is given next run late."""
    if DEVICE.type == "cuda":
        torch.cuda._sleep(CYCLES)


def says(tensor: torch.Tensor, *values: float) -> None:
    """Assert that each of the equal parts of `tensor` has that value."""
    for part, value in zip(tensor.chunk(len(values)), values, strict=True):
        assert part.eq(value).all().item(), f"{part} is not {value}"


@check
def every_collective() -> None:
    n, total = count(), float(sum(range(count())))
    everyone = [float(rank) for rank in range(n)]
    for mode in (False, True):
        for size in (0, 1, 1000, 300_001):
            works: list[dist.Work | None] = []
            summed, spread = filled(size, me()), filled(size, me())
            reduced = filled(size, me())
            blocks = [room(size) for _ in everyone]
            whole, own, part = room(n * size), room(size), room(size)
            exchanged, listed = room(n * size), [room(size) for _ in everyone]
            collected = [room(size) for _ in everyone] if me() == 1 % n else None
            given = [filled(size, 10 * rank) for rank in range(n)] if me() == 0 else None
            source = torch.cat([filled(size, rank + me()) for rank in range(n)])
            works += [
                dist.all_reduce(summed, async_op=mode),
                dist.broadcast(spread, n - 1, async_op=mode),
                dist.reduce(reduced, 0, ReduceOp.MAX, async_op=mode),
                dist.all_gather(blocks, filled(size, me()), async_op=mode),
                dist.all_gather_into_tensor(whole, filled(size, me()), async_op=mode),
                dist.reduce_scatter_tensor(own, source, async_op=mode),
                dist.gather(filled(size, me()), collected, 1 % n, async_op=mode),
                dist.scatter(part, given, 0, async_op=mode),
                dist.all_to_all_single(exchanged, source, async_op=mode),
                dist.all_to_all(listed, list(source.view(n, size).unbind()), async_op=mode),
            ]
            for work in works:
                if mode:
                    assert work is not None
                    work.wait()
            says(summed, total)
            says(spread, n - 1)
            says(reduced, n - 1 if me() == 0 else me())
            for rank, block in enumerate(blocks):
                says(block, rank)
            if size:
                says(whole, *everyone)
                says(exchanged, *(rank + me() for rank in everyone))
            for rank, block in enumerate(listed):
                says(block, rank + me())
            says(own, total + n * me())
            for rank, block in enumerate(collected or []):
                says(block, rank)
            says(part, 10 * me())
    dist.barrier()


@check
def types_and_layouts() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool):
        tensor = filled(77, 1, dtype)
        dist.all_reduce(tensor, ReduceOp.MAX)
        assert tensor.eq(1).all().item()
    bits = filled(8, 0, torch.float8_e4m3fn)
    dist.broadcast(bits, 0)
    grid = torch.arange(12.0, device=DEVICE).view(3, 4)
    dist.all_reduce(grid.t())
    dist.all_reduce(turned := grid[:, 1::2], async_op=True).wait()
    assert torch.equal(turned, torch.arange(12.0, device=DEVICE).view(3, 4)[:, 1::2] * count() ** 2)
    number = torch.complex(filled(5, 1.0), filled(5, 2.0))
    dist.all_reduce(number)
    assert torch.equal(number, torch.complex(filled(5, count()), filled(5, 2.0 * count())))
    gathered = [room(5) for _ in range(count())]
    dist.all_gather(gathered, number.conj().imag)  # a lazy negative
    for one in gathered:
        says(one, -2.0 * count())
    parameter = nn.Parameter(filled(3, me()))
    dist.broadcast(parameter, 0)
    says(parameter.detach(), 0)
    scalar = torch.tensor(float(me()), device=DEVICE)
    dist.all_reduce(scalar)
    assert scalar.item() == sum(range(count()))


@check
def a_call_reads_what_the_stream_writes_before() -> None:
    for mode in (False, True):
        keep_busy()
        tensor = filled(1_000_000, me()) + 1
        work = dist.all_reduce(tensor, async_op=mode)
        if work is not None:
            work.wait()
        tensor += 1  # on the stream, without waiting for the GPU
        says(tensor, sum(range(count())) + count() + 1)


@check
def a_call_writes_after_the_stream_has_read() -> None:
    for mode in (False, True):
        tensor = filled(1_000_000, me())
        keep_busy()
        before = tensor.clone()
        work = dist.broadcast(tensor, 0, async_op=mode)
        if work is not None:
            work.wait()
        says(before, me())
        says(tensor, 0)


@check
def calls_on_another_stream() -> None:
    other = torch.cuda.Stream() if DEVICE.type == "cuda" else None
    tensor = filled(500_000, 1.0)
    if other is not None:
        other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other) if other is not None else nullcontext():
        keep_busy()
        tensor.mul_(2)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        tensor.add_(1)
    if other is not None:
        torch.cuda.current_stream().wait_stream(other)
    says(tensor, 2 * count() + 1)


@check
def results_outlive_their_names() -> None:
    for _ in range(30):
        dist.all_reduce(filled(100_000, 1.0), async_op=True)  # tensor and work are dropped
    tensors = [filled(50_000 + i, i) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for i, tensor in enumerate(tensors):
        says(tensor, i * count())
    if SHARED:  # torch's C++ passes on no more of a Python work than wait() and get_future()
        return
    work = dist.all_reduce(tensors[1], async_op=True)
    while not work.is_completed():
        pass
    assert work.is_success()
    work.synchronize()
    says(tensors[1], count() ** 2)


@check
def futures() -> None:
    tensors = [filled(size, 1.0) for size in (1, 10, 400_000)]
    doubled = [
        dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
        for tensor in tensors
    ]
    for future in doubled:
        says(future.wait(), 2 * count())
    work = dist.all_reduce(tensors[0], async_op=True)
    work.wait()
    says(work.get_future().wait()[0], count() ** 2)


@check
def coalesced_calls() -> None:
    with dist._coalescing_manager(device=DEVICE, async_ops=True) as manager:
        tensors = [filled(size, me()) for size in (3, 70_000)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        says(tensor, sum(range(count())))
    outputs = [room(count() * 5), room(count() * 50_000)]
    with dist._coalescing_manager(device=DEVICE):
        for output in outputs:
            dist.all_gather_into_tensor(output, filled(len(output) // count(), me()))
    for output in outputs:
        says(output, *range(count()))


@check
def sums_of_what_every_rank_multiplies() -> None:
    for factor in (me() + 1.0, torch.tensor(me() + 1.0, device=DEVICE)):
        op = dist._make_nccl_premul_sum(factor)
        total = sum((rank + 1) * (rank + 2) for rank in range(count()))
        own = filled(1000, me() + 2)
        keep_busy()
        dist.all_reduce(own, op)
        says(own, total)
        part, source = room(100), filled(100 * count(), me() + 2)
        dist.reduce_scatter_tensor(part, source, op)
        says(part, total)
        says(source, me() + 2)
        dist.reduce(source, 0, op)
        says(source, total if me() == 0 else me() + 2)


@check
def groups_that_are_split_off() -> None:
    group = dist.split_group(split_ranks=[list(range(count()))[::-1]])
    own = filled(10, me())
    dist.all_reduce(own, group=group)
    says(own, sum(range(count())))
    assert dist.get_process_group_ranks(group) == list(range(count()))[::-1]
    dist.destroy_process_group(group)
    if SHARED and me():  # where torch's C++ stands between, it cannot tell a rank that it has none
        try:
            dist.split_group(split_ranks=[[0]])
        except ValueError as error:
            assert f"rank {me()} is in no part" in str(error), error
        else:
            raise AssertionError("nothing was raised")
    else:
        dist.split_group(split_ranks=[[0]])


@check
def sums_of_sparse_tensors() -> None:
    own = torch.sparse_coo_tensor(
        [[me(), 5, 5]], [1.0, 2.0, 3.0], (10,), device=DEVICE, check_invariants=True
    )
    keep_busy()
    for asynchronous in (False, True):
        found = own.clone()
        work = dist.all_reduce(found, async_op=asynchronous)
        if work is not None:
            work.wait()
        wanted = torch.zeros(10, device=DEVICE)
        wanted[: count()] = 1
        wanted[5] = 5 * count()
        assert torch.equal(found.to_dense(), wanted), found


@check
def send_and_receive() -> None:
    n = count()
    right, left = (me() + 1) % n, (me() - 1) % n
    landing = [room(50), room(300_000), room(2, 40).t()]
    ops = []
    for index, tensor in enumerate(landing):
        keep_busy()
        sent = torch.full_like(tensor, 10 * index + me())
        ops.append(dist.P2POp(dist.irecv, tensor, left, tag=index))
        ops.append(dist.P2POp(dist.isend, sent, right, tag=index))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for index, tensor in enumerate(landing):
        says(tensor, 10 * index + left)
    if me() == 0:
        dist.send(filled(9, 3.0), 1)
    elif me() == 1:
        tensor = room(9)
        assert dist.recv(tensor, 0 if SHARED else None) == 0  # None: from anybody
        says(tensor, 3.0)


def train(device: torch.device, group: dist.ProcessGroup, **options: object) -> list[torch.Tensor]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(20, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(model.to(device), process_group=group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(4):
        generator = torch.Generator().manual_seed(100 * step + me())
        x = torch.randn(32, 20, generator=generator).to(device)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@check
def distributed_data_parallel_trains_as_on_cpu_with_gloo() -> None:
    gloo = dist.new_group(backend="gloo")
    for options in (
        {},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.002},
        {"static_graph": True, "broadcast_buffers": False},
    ):
        ours = train(DEVICE, dist.group.WORLD, **options)
        theirs = train(torch.device("cpu"), gloo, **options)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-4), f"{options}"
    dist.destroy_process_group(gloo)


@check
def fully_sharded_trains_alike_on_all_ranks() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(20, 37), nn.ReLU(), nn.Linear(37, 10)).to(DEVICE)
    alone = nn.Sequential(nn.Linear(20, 37), nn.ReLU(), nn.Linear(37, 10)).to(DEVICE)
    alone.load_state_dict(model.state_dict())
    mesh = init_device_mesh(DEVICE.type, (count(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    for trained in (model, alone):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        for step in range(3):
            x = torch.randn(8, 20, generator=torch.Generator().manual_seed(step)).to(DEVICE)
            trained(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for sharded, whole in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(sharded.full_tensor(), whole, rtol=1e-3, atol=1e-4)


@check
def the_profiler_shows_staged_calls() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as found:
        work = dist.all_reduce(tensor := filled(100_000, 1.0), async_op=True)
        work.wait()
        says(work.get_future().wait()[0], count())
        dist.all_reduce(tensor)
    names = [event.name for event in found.events() if event.name.startswith("headrace:")]
    assert names == ["headrace:allreduce"] * 2, names


@check
def mistakes_get_clear_errors() -> None:
    def refuses(tensor: torch.Tensor, *words: str) -> None:
        try:
            dist.all_gather([room(3) for _ in range(count())], tensor)
        except ValueError as error:
            assert all(word in str(error) for word in words), error
        else:
            raise AssertionError("nothing was raised")

    if not SHARED:  # torch's dispatcher knows none for sparse tensors
        refuses(room(3).to_sparse(), "dense")
    if DEVICE.type == "cuda":
        refuses(torch.ones(3), "one device")
        own = room(3)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            refuses(own, "CUDA graph")
    dist.all_reduce(room(3))  # and none of them broke the group


def main() -> None:
    torch.set_num_threads(1)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
        torch.backends.cuda.matmul.allow_tf32 = False
    else:
        absent_device.install()
    dist.init_process_group(sys.argv[2], timeout=timedelta(seconds=60))
    for function in CHECKS:
        print(f"[{me()}] {function.__name__}", flush=True)
        function()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed

    main()
