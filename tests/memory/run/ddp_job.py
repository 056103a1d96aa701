"""One rank of a job that trains a fitted model by DistributedDataParallel; run by test_ddp.py."""

import copy
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from headrace.memory.adapt.fit import fitted_module
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.captured import Capture
from headrace.memory.plan.baselines import keep_schedule
from headrace.memory.schedule import Schedule, plain_schedule

BUCKET_MB = 0.02  # several buckets
STEPS = 3


def network(dropout: float = 0.1) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))


def data(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 3, 16, 16, generator=generator)


def by_rank(captured: Capture) -> dict[int, Schedule]:
    """Recompute all on rank 1, nothing on others: ranks' plans may differ."""
    graph = captured.graph
    return {1: keep_schedule(graph, ()) if dist.get_rank() else plain_schedule(graph)}


def train(model: Any, *, accumulate: bool, cast: bool) -> list[torch.Tensor]:
    """Train, and return gradients, parameters and buffers of all steps."""
    rank = dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=cast)
    found: list[torch.Tensor] = []
    for step in range(STEPS):
        torch.manual_seed(step)
        for part in range(1 + accumulate):
            is_last = part == accumulate
            waits: Any = nullcontext() if is_last else model.no_sync()
            with waits:
                with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                    loss = model(data(2 * step + part, rank)).float().square().mean()
                scaler.scale(loss).backward()
        found += [each.grad.clone() for each in model.parameters() if each.grad is not None]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found += [each.detach().clone() for each in (*model.parameters(), *model.buffers())]
    return found


def compare(name: str, **how: bool) -> None:
    """Train the fitted and the plain model, and compare them to the last bit."""
    # eager's dropout on the CPU rounds its factor to bfloat16, that of captured steps does not
    dropout = 0.0 if how["cast"] else 0.1
    for views in (False, True):
        options: dict[str, Any] = {"bucket_cap_mb": BUCKET_MB, "gradient_as_bucket_view": views}
        plain = DistributedDataParallel(network(dropout), **options)
        fitted = DistributedDataParallel(fitted_module(network(dropout), by_rank), **options)
        wanted, found = train(plain, **how), train(fitted, **how)
        assert list(plain.state_dict()) == list(fitted.state_dict())
        assert len(wanted) == len(found) > 3 * 20
        differ = [i for i, pair in enumerate(zip(wanted, found, strict=True)) if not same(*pair)]
        assert not differ, f"{name}: {differ[:5]} of {len(wanted)} differ"
        print(f"equal {name} views={views}", flush=True)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other)


def averaged_here(_state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Complete a bucket in the thread of the backward pass, as if the ranks' gradients agreed."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def fit_counts_buckets() -> None:
    """Fit within a budget that the buckets are part of, and train by it.

    Over Gloo the peak depended on the machine's other work: Gloo's threads hold a bucket until they
    run again, and what they free, the profiler of this thread does not see. Here no thread but this
    one holds a bucket, so the peak is the same in every run.
    """
    from headrace.memory import fit

    with tempfile.TemporaryDirectory() as folder:
        os.environ["HEADRACE_CACHE"] = folder
        model, x = network(), data(0, dist.get_rank())
        (alone,) = fit(copy.deepcopy(model), x, "4MiB").plans
        budget = int(0.8 * alone.peak_bytes)
        fitted = fit(model, x, budget, ddp=True)
        (plan,) = fitted.plans
        resident = plan.profile.graph.resident
        assert resident["buckets"] >= sum(each.nbytes for each in model.parameters())
        assert "buckets" not in alone.profile.graph.resident
        for views in (False, True):

            def job(views: bool = views) -> None:
                wrapped = DistributedDataParallel(fitted, gradient_as_bucket_view=views)
                wrapped.register_comm_hook(None, averaged_here)
                for _ in range(STEPS):  # buckets are made anew before the second
                    wrapped(x).square().mean().backward()
                    model.zero_grad()

            found = allocations_of(job, torch.device("cpu"))
            # what the job allocates by itself
            there = sum(resident.values()) - resident["generators"] - resident["buckets"]
            assert found.peak_bytes + there <= budget, (found, resident, budget)
    print("counted", flush=True)


CHECKS: dict[str, Callable[[], None]] = {
    "step": lambda: compare("step", accumulate=False, cast=False),
    "accumulation": lambda: compare("accumulation", accumulate=True, cast=False),
    "autocast": lambda: compare("autocast", accumulate=False, cast=True),
    "fit": fit_counts_buckets,
}


def main() -> None:
    """Run the checks that are named, over a backend."""
    backend, *names = sys.argv[1:]
    alone = {"rank": 0, "world_size": 2, "store": FakeStore()} if backend == "fake" else {}
    dist.init_process_group(backend, **alone)
    for name in names:
        CHECKS[name]()
    gc.collect()  # cycles of DDP would keep Gloo's threads until Python ends: a crash
    dist.destroy_process_group()
    print("all done", flush=True)


if __name__ == "__main__":
    main()
