"""One rank of the model's jobs: profiles, latencies and cells, as its parent asks for them."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.compression.networks import BUCKET_CAP_MB, Training, training
from headrace.compression import ddp_hook
from headrace.compression.codecs.requests import AllGather, AllToAll
from headrace.compression.measure.job import profile_model
from headrace.compression.run.messages import Messages
from headrace.launch.worker import Receive, Send, run_worker

WARM_UP = 3
_PINGS = 40
_PING_BYTES = 16 << 10
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
                send(us=_latency_us(asked["bytes_per_s"]))
            case "exchanges":
                send(ms=_exchanges_ms(asked["payload_bytes"], asked["repeats"]))
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


def _latency_us(bytes_per_s: float) -> float:
    """Return the time of one of the 2(p - 1) messages of a small allreduce, less its bytes' time.

    The allreduce has the size of a low-rank factor: Gloo treats a message of some bytes in another
    way than one of some thousand.
    """
    small = torch.zeros(_PING_BYTES // 4)
    ranks = dist.get_world_size()
    taken = [_timed_ms(lambda: dist.all_reduce(small)) * 1e3 for _ in range(_PINGS)]
    messages = 2 * (ranks - 1)
    sending_us = messages / ranks * _PING_BYTES / bytes_per_s * 1e6
    return max(0.0, statistics.median(taken) - sending_us) / messages


def _exchanges_ms(payload_bytes: int, repeats: int) -> dict[str, list[float]]:
    """Return the times of Gloo's exchanges and of those by messages, which take turns."""
    ranks = dist.get_world_size()
    sent = torch.randint(256, (ranks, payload_bytes // ranks), dtype=torch.uint8)
    own = torch.full((payload_bytes // ranks,), dist.get_rank(), dtype=torch.uint8)
    gathered = torch.empty(ranks, len(own), dtype=torch.uint8)
    messages = Messages(dist.group.WORLD)

    def gloo_all_to_all() -> torch.Tensor:
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return received

    def gloo_allgather() -> torch.Tensor:
        dist.all_gather_into_tensor(gathered.view(-1), own)
        return gathered.clone()

    def by_messages(request: AllToAll | AllGather) -> torch.Tensor:
        messages.begin(request).wait()
        return request.received.clone()

    calls: dict[str, Callable[[], torch.Tensor]] = {
        "all_to_all gloo": gloo_all_to_all,
        "all_to_all messages": lambda: by_messages(AllToAll(sent)),
        "allgather gloo": gloo_allgather,
        "allgather messages": lambda: by_messages(AllGather(own, gathered)),
    }
    for collective in ("all_to_all", "allgather"):
        if not torch.equal(calls[f"{collective} gloo"](), calls[f"{collective} messages"]()):
            raise RuntimeError(f"{collective} by messages differs from Gloo's")
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            taken[name].append(_timed_ms(call))
    return taken


def _timed_ms(call: Callable[[], Any]) -> float:
    dist.barrier()
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    run_worker(work)
