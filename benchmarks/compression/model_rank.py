"""One rank of the model's jobs: profiles, latencies and cells, as its parent asks for them."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.compression.networks import BUCKET_CAP_MB, Training, training
from headrace.compression import ddp_hook
from headrace.compression.measure.job import profile_model
from headrace.launch.worker import Receive, Send, run_worker

WARM_UP = 3
_PINGS = 40
_RATE = 1e-3


def work(receive: Receive, send: Send) -> None:
    """Answer one request after the other."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    jobs: dict[tuple[str, str], Training] = {}

    def job(asked: dict[str, Any]) -> Training:
        key = (asked["network"], asked["compute"])
        if key not in jobs:
            jobs[key] = training(*key)
        return jobs[key]

    while (asked := receive())["do"] != "end":
        match asked["do"]:
            case "latency":
                send(us=_latency_us())
            case "profile":
                model, loss = job(asked)
                found = profile_model(
                    model,
                    loss,
                    name=asked["network"],
                    batch=1,
                    codecs=asked["codecs"],
                    optimizer=_optimizer,
                    bucket_cap_mb=BUCKET_CAP_MB,
                    steps=asked["steps"],
                )
                send(head=found.to_head(), provenance=dict(found.provenance))
            case _:
                send(ms=_cell(*job(asked), asked["codec"], asked["steps"]))
    dist.barrier()
    dist.destroy_process_group()


def stepper(
    model: nn.Module, loss: Callable[[nn.Module], torch.Tensor]
) -> tuple[DistributedDataParallel, Callable[[], float]]:
    """Return a model under DDP, and its training step, which returns its milliseconds."""
    parallel = DistributedDataParallel(model, bucket_cap_mb=BUCKET_CAP_MB)
    optimizer = _optimizer(parallel.parameters())

    def step() -> float:
        began = time.perf_counter()
        loss(parallel).backward()
        optimizer.step()
        optimizer.zero_grad()
        return (time.perf_counter() - began) * 1e3

    return parallel, step


def _optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=_RATE)


def _cell(
    model: nn.Module, loss: Callable[[nn.Module], torch.Tensor], codec: str, steps: int
) -> list[float]:
    parallel, step = stepper(model, loss)
    hook = None if codec == "none" else ddp_hook(parallel, codec)
    for _ in range(WARM_UP):
        step()
    dist.barrier()
    taken = [step() for _ in range(steps)]
    if hook is not None:
        hook.close()
    return taken


def _latency_us() -> float:
    """Return the time of one of the 2(p - 1) messages that a small allreduce sends in turn."""
    small = torch.zeros(1)
    taken: list[float] = []
    for _ in range(_PINGS):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(small)
        taken.append((time.perf_counter() - began) * 1e6)
    return sorted(taken)[_PINGS // 2] / (2 * (dist.get_world_size() - 1))


if __name__ == "__main__":
    run_worker(work)
