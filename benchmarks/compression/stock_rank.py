"""One rank of `benchmarks.compression.stock`: steps with torch's hooks and headrace's, by turns.

The first message is {"store", "rank", "ranks", "backend"}. {"pair", "rounds"} is answered by
{"seconds": {name: [of each round]}, "errors": {name: of the mean, relative}}, and {"memory",
"steps"} by {"held_bytes", "payload_bytes", "gradient_bytes"}.
"""

import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.compression.resnet import resnet50_shapes
from headrace.compression import Policy, ddp_hook
from headrace.compression.averaging import Averager
from headrace.compression.codecs.requests import AllReduce, run_together
from headrace.compression.run.exchanger import Exchanger
from headrace.launch.worker import Receive, Send, run_worker

RANK = 4
START = 2  # torch's PowerSGD cannot begin earlier: both do, as residuals grow with the steps
WARM_UP = 4
CODECS = {"fp16": "fp16", "powersgd": f"powersgd:{RANK}"}
ready: list[float] = []
"""Times at which a backward pass computed its last gradient."""

_BYTES = re.compile(r"^Vm(?:HWM|RSS):\s*(\d+) kB", re.M)


class Given(nn.Module):
    """ResNet-50's parameters, with gradients that are given: next to no computation."""

    def __init__(self, gradients: list[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(g.shape) for g in gradients])
        self._gradients = gradients

    def forward(self) -> Tensor:
        pairs = zip(self.weights, self._gradients, strict=True)
        return torch.stack([torch.dot(p.view(-1), g.view(-1)) for p, g in pairs]).sum()


def given_gradients(rank: int) -> list[Tensor]:
    """Return gradients of matrices with singular values that fall, and noise of this rank."""
    common, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1 + rank)
    found: list[Tensor] = []
    for shape in resnet50_shapes():
        rows, columns = shape[0], math.prod(shape[1:])
        width = min(16, rows, columns)
        left = torch.randn(rows, width, generator=common) * 0.7 ** torch.arange(width)
        matrix = left @ torch.randn(width, columns, generator=common)
        found.append((matrix + 0.2 * torch.randn(rows, columns, generator=own)).view(shape))
    return found


def compressed(gradients: list[Tensor], register: Callable[..., object]) -> DistributedDataParallel:
    """Return a model of one bucket with a hook; torch's PowerSGD hangs on more."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 40  # type: ignore[attr-defined]
    given = Given(gradients)
    model = DistributedDataParallel(given, bucket_cap_mb=1 << 20, gradient_as_bucket_view=True)
    register(model)
    # the last one of the bucket: from then on the time is the hook's
    next(iter(given.weights)).register_hook(lambda _: ready.append(time.perf_counter()))
    return model


def hooks(pair: str) -> dict[str, Callable[[DistributedDataParallel], object]]:
    """Return what registers torch's hook and headrace's, the latter for uncompressed steps."""
    if pair == "fp16":
        return {
            "torch": lambda m: m.register_comm_hook(None, default_hooks.fp16_compress_hook),
            "headrace": lambda m: ddp_hook(m, Policy(codec="none", one_dimension=True, smallest=0)),
        }

    def stock(model: DistributedDataParallel) -> None:
        state = powerSGD_hook.PowerSGDState(None, RANK, start_powerSGD_iter=START)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return {"torch": stock, "headrace": lambda m: ddp_hook(m, "none")}


def by_turns(pair: str, rounds: int, rank: int) -> dict[str, object]:
    """Return the seconds of backward passes, and how far the means are from the exact one."""
    gradients = given_gradients(rank)
    exact = [g.clone() for g in gradients]
    for mean in exact:
        dist.all_reduce(mean)
        mean.div_(dist.get_world_size())
    made: dict[str, Any] = {}
    models = {
        name: compressed(gradients, lambda m, n=name, r=register: made.update({n: r(m)}))
        for name, register in hooks(pair).items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in models}
    errors: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(WARM_UP + rounds):
        if turn == START:
            made["headrace"].set_codec(None, CODECS[pair])
        for name, model in models.items():
            loss = model()
            dist.barrier()
            loss.backward()
            spent = time.perf_counter() - ready[-1]
            if turn >= WARM_UP:
                seconds[name].append(spent)
                errors[name].append(_relative_error(model, exact))
            model.zero_grad(set_to_none=False)
    means = {name: sum(each) / len(each) for name, each in errors.items()}
    return {"seconds": seconds, "errors": means}


def _relative_error(model: DistributedDataParallel, exact: list[Tensor]) -> float:
    """Return the distance of a model's gradients from the exact mean, over the latter's norm."""
    off = norm = 0.0
    for parameter, mean in zip(model.parameters(), exact, strict=True):
        assert parameter.grad is not None
        off += float(torch.dist(parameter.grad, mean)) ** 2
        norm += float(torch.linalg.vector_norm(mean)) ** 2
    return math.sqrt(off / norm)


def _highest_bytes(field: int) -> int:
    """Return the highest resident memory since the last reset (0), or the present one (1)."""
    return 1024 * int(_BYTES.findall(Path("/proc/self/status").read_text())[field])


def memory(codec: str, steps: int, rank: int) -> dict[str, int]:
    """Return the highest resident memory of steps with a hook above that of steps without."""
    small = [("weight", torch.randn(512, 512))]  # loads the code, which is no gradient's memory
    run_together([Averager(codec, {"weight": (512, 512)}, rank=0, ranks=1).average(small)])
    gradients = given_gradients(rank)
    model = DistributedDataParallel(Given(gradients))
    peaks: list[int] = []
    payload = [0, 0]  # of a round, and the most of all
    take, run_round = Exchanger._take, Exchanger._round

    def counted(self, request, waits, packs):
        payload[0] += request.payload_bytes
        if not isinstance(request, AllReduce):
            payload[0] += request.received.nbytes
        return take(self, request, waits, packs)

    def counted_round(self, running):
        payload[1], payload[0] = max(payload), 0
        return run_round(self, running)

    for hooked in (False, True):
        if hooked:
            ddp_hook(model, codec)
            Exchanger._take, Exchanger._round = counted, counted_round  # type: ignore[method-assign]
        for _ in range(steps):
            model().backward()
            Path("/proc/self/clear_refs").write_text("5")  # the highest one is that from here on
        model().backward()
        peaks.append(_highest_bytes(0))
    Exchanger._take, Exchanger._round = take, run_round  # type: ignore[method-assign]
    return {
        "held_bytes": peaks[1] - peaks[0],
        "payload_bytes": max(payload),
        "gradient_bytes": sum(g.nbytes for g in gradients),
    }


def work(receive: Receive, send: Send) -> None:
    """Answer until the parent is gone."""
    torch.set_num_threads(1)
    start = receive()
    rank, ranks = start["rank"], start["ranks"]
    dist.init_process_group(
        start["backend"], init_method=f"file://{start['store']}", rank=rank, world_size=ranks
    )
    while True:
        task = receive()
        if "pair" in task:
            send(**by_turns(task["pair"], task["rounds"], rank))
        else:
            send(**memory(task["memory"], task["steps"], rank))


if __name__ == "__main__":
    run_worker(work)
