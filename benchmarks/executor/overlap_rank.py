"""One rank of a job that times DDP's steps: ``python -m ...overlap_rank TASK``.

The task is JSON: {"stages", "elements", "forward_s", "backward_s", "batch", "rounds"}: a chain of
`stages` square matrices of about `elements` elements, a bucket each; with `batch` it is computed,
else a device is emulated that sleeps. Every round has a step without communication, then one a
backend. A communication hook records when each bucket is ready and when its allreduce has ended.
Every rank writes its results in lines of JSON.
"""

import json
import math
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.instruments.models import Chain, Emulated
from benchmarks.jobs import emit
from benchmarks.processors import processor_ticks

BACKENDS = ("headrace", "gloo")
ALONE = "alone"
WARM_UP = 2
"""Rounds: DDP orders its buckets anew after the first step, connections open their windows."""

PROBES = 3
"""Allreduces alone, a round and backend."""

FLOAT_BYTES = 4
ROUNDING = 1e-5


@dataclass(slots=True)
class Hook:
    """DDP's allreduce, on a group or (None) skipped, with the times of every bucket."""

    group: Any = None
    ready: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begin to average a bucket."""
        number = len(self.ready)
        self.ready.append(time.monotonic())
        self.ended.append(math.nan)
        tensor = bucket.buffer().div_(dist.get_world_size())
        if self.group is None:
            done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            done.set_result(tensor)
            self.ended[number] = self.ready[number]
            return done
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        assert work is not None

        def finish(future: "torch.futures.Future[Any]") -> torch.Tensor:
            self.ended[number] = time.monotonic()
            found = future.value()
            return found[0] if isinstance(found, list) else found

        return work.get_future().then(finish)


def call_hook(state: Hook, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Call the hook in DDP's form: a function of a state and a bucket."""
    return state(bucket)


class Job:
    """The network and its measurements."""

    def __init__(self, task: dict[str, Any], groups: dict[str, Any]) -> None:
        self._task, self._groups = task, groups
        self._hook = Hook()
        self._batch: int = task["batch"]
        self._width = round(task["elements"] ** 0.5)
        rank = dist.get_rank()
        torch.manual_seed(0)
        stages: list[nn.Module] = [
            nn.Sequential(nn.Linear(self._width, self._width, bias=False), nn.Tanh())
            for _ in range(task["stages"])
        ]
        if self._batch:
            network: nn.Module = Chain(stages)
        else:
            times = [(task["forward_s"], task["backward_s"])] * task["stages"]
            network = Emulated(stages, times, bias=0.001 * (rank + 1))
        self.network = DistributedDataParallel(
            network,
            process_group=groups["gloo"],
            bucket_cap_mb=self._width**2 * FLOAT_BYTES / 2**20,
        )
        self.network.register_comm_hook(self._hook, call_hook)

    def step(self, number: int, mode: str) -> dict[str, Any]:
        """Take a step; returns its times on the ranks' shared clock, from the backward pass on."""
        hook = self._hook
        hook.group = self._groups.get(mode)
        hook.ready, hook.ended = [], []
        generator = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        inputs = torch.randn(max(1, self._batch), self._width, generator=generator)
        self.network.zero_grad()
        loss = self.network(inputs)
        dist.barrier(group=self._groups["gloo"])
        before = processor_ticks()
        began = time.monotonic()
        loss.backward()
        ended = time.monotonic()
        idle = before.idle_share(processor_ticks())
        return {
            "began": began,
            "end": ended,
            "ready": hook.ready,
            "ended": hook.ended,
            "idle": idle,
        }

    def gradients(self) -> list[torch.Tensor]:
        """Return a copy of all gradients."""
        return [each.grad.clone() for each in self.network.parameters() if each.grad is not None]

    def allreduces(self, mode: str) -> list[tuple[float, float]]:
        """Return (begin, end) of every allreduce of a bucket alone."""
        taken: list[tuple[float, float]] = []
        tensor = torch.ones(self._width**2)
        for _ in range(PROBES):
            dist.barrier(group=self._groups["gloo"])
            began = time.monotonic()
            dist.all_reduce(tensor, group=self._groups[mode])
            taken.append((began, time.monotonic()))
        return taken


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Return whether there are gradients and they are the same but for rounding."""
    return len(one) == len(other) > 0 and all(
        float((a - b).abs().max()) <= ROUNDING * float(b.abs().max()) > 0
        for a, b in zip(one, other, strict=True)
    )


def main() -> None:
    """Take all steps."""
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, "headrace": dist.new_group(backend="headrace")}
    job = Job(task, groups)
    for number in range(WARM_UP + task["rounds"]):
        found: dict[str, Any] = {}
        gradients: dict[str, list[torch.Tensor]] = {}
        for mode in (ALONE, *BACKENDS[:: 1 if number % 2 else -1]):
            found[mode] = job.step(number, mode)
            gradients[mode] = job.gradients()
            if mode != ALONE:
                found[mode]["allreduces"] = job.allreduces(mode)
        wrong = not same(gradients["headrace"], gradients["gloo"])
        if number >= WARM_UP:
            emit("round", steps=found, wrong=wrong)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
