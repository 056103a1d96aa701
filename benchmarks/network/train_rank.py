"""One rank of a training job on Gloo and on headrace in turn: ``python -m ...train_rank TASK``.

The task is JSON: {"cases": [[workload, "emulated" or "real"], ...], "rounds", "steps"}. For every
case there are two copies of a network under DistributedDataParallel, one a backend, and one without
communication, for the time of computing alone. They take turns, get the same batches, and must end
with the same weights within rounding. Rank 0 writes its results in lines of JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.instruments.models import WORKLOADS, Chain, Emulated, Workload, record
from benchmarks.jobs import emit

BACKENDS = ("gloo", "headrace")
BUCKET_CAP_MB = 1  # networks are a hundredth of today's, and so are buckets
LEARNING_RATE = 0.01
WARM_UP = 2
"""Steps: DDP orders its buckets anew after the first, connections open their windows."""

Step = Callable[[int], None]


def main() -> None:
    """Run every case."""
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "headrace": dist.new_group(backend="headrace")}
    for name, compute in task["cases"]:
        found = run_case(WORKLOADS[name], compute, groups, task["rounds"], task["steps"])
        if dist.get_rank() == 0:
            emit("case", **found)
    dist.barrier()
    dist.destroy_process_group()


def run_case(
    workload: Workload, compute: str, groups: dict[str, Any], rounds: int, steps: int
) -> dict[str, Any]:
    """Return the results of one case."""
    times = _recorded(workload) if compute == "emulated" else None

    def fresh() -> nn.Module:
        torch.manual_seed(0)
        stages = workload.stages()
        if times is None:
            return Chain(stages)
        return Emulated(stages, times, bias=0.001 * (dist.get_rank() + 1))

    models = {name: fresh() for name in BACKENDS}
    movers = {
        name: _stepper(
            workload,
            DistributedDataParallel(
                models[name], process_group=groups[name], bucket_cap_mb=BUCKET_CAP_MB
            ),
        )
        for name in BACKENDS
    }
    movers["alone"] = _stepper(workload, fresh())
    taken: dict[str, list[float]] = {name: [] for name in movers}
    for mover in movers.values():
        for number in range(WARM_UP):
            mover(number)
    for number in range(rounds):
        # the order changes from round to round
        for name in list(movers)[:: 1 if number % 2 else -1]:
            dist.barrier()
            for step in range(steps):
                began = time.perf_counter()
                movers[name](WARM_UP + number * steps + step)
                taken[name].append((time.perf_counter() - began) * 1e3)
    parameters = list(models["gloo"].parameters())
    return {
        "workload": workload.name,
        "compute": compute,
        "mb": sum(each.nbytes for each in parameters) / 1e6,
        "tensors": len(parameters),
        "ms": taken,
        "difference": _difference(models["gloo"], models["headrace"]),
        "ranks_agree": _ranks_agree(models["headrace"]),
    }


def _stepper(workload: Workload, model: nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(workload.inputs(number * ranks + rank)).backward()
        optimizer.step()

    return step


def _recorded(workload: Workload) -> list[tuple[float, float]]:
    """Return rank 0's times, recorded while the others wait."""
    box: list[Any] = [None]
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        box = [record(workload)]
    dist.broadcast_object_list(box)
    return [(float(forward), float(backward)) for forward, backward in box[0]]


def _difference(one: nn.Module, other: nn.Module) -> float:
    """Return the largest difference between weights, over the largest weight of their tensor."""
    return max(
        float((a - b).abs().max() / a.abs().max().clamp_min(1e-30))
        for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )


def _ranks_agree(model: nn.Module) -> bool:
    """Return whether all ranks have the same weights, bit by bit."""
    flat = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    bits = flat.view(torch.int32)
    low, high = bits.clone(), bits.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return bool((low == high).all())


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
