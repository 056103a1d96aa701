"""torch's layers above collectives: functional ones, DDP, FSDP, distributed tensors."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.conformance.sample.checks import everyone, made, make, me, same, slow


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
def tensor_parallel_trains_as_with_gloo() -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    gloo = dist.new_group(backend="gloo")
    results = []
    for group in (dist.group.WORLD, gloo):
        torch.manual_seed(7)
        model = nn.Sequential(
            nn.LayerNorm(24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24), nn.Linear(24, 5)
        )
        mesh = DeviceMesh.from_group(group, "cpu")
        plan = {
            "0": SequenceParallel(use_local_output=True),
            "1": ColwiseParallel(input_layouts=Shard(1)),  # all-gathers, reduce-scatters back
            "3": RowwiseParallel(),  # all-reduces
        }
        parallelize_module(model, mesh, plan)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        for step in range(3):
            generator = torch.Generator().manual_seed(step)  # all ranks work on the same data
            x = torch.randn(2, 4 * len(everyone()), 24, generator=generator)
            model(x.chunk(len(everyone()), 1)[me()]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(
            [
                p.full_tensor().detach() if isinstance(p, DTensor) else p.detach()
                for p in model.parameters()
            ]
        )
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
