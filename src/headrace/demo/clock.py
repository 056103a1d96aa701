"""Messages and timings of the demo's job beside its training."""

import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_REPEATS = 3

Given = TypeVar("Given")


def emit(**event: Any) -> None:
    """Write a line of JSON, at rank 0 only."""
    if dist.get_rank() == 0:
        emit_everywhere(**event)


def emit_everywhere(**event: Any) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def timed(step: Callable[[Given], float], argument: Given) -> tuple[float, float]:
    """Return the time of a step (us) and its result."""
    start = time.perf_counter()
    result = step(argument)
    return (time.perf_counter() - start) * 1e6, result


def computing_us(step: Callable[[Given], float], argument: Given, steps: int) -> list[float]:
    """Return the times (us) of steps that send nothing, taken by all ranks at the same time."""
    dist.barrier()
    return [timed(step, argument)[0] for _ in range(steps)]


def bucket_bytes(ddp: DistributedDataParallel) -> list[int]:
    """Return the sizes of the buckets that DDP reduces, in its order."""
    data = ddp._get_ddp_logging_data()  # pyright: ignore[reportPrivateUsage]
    # rebuilt: the order in which gradients became ready in the first step
    text = data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]
    return [int(size) for size in str(text).split(",")]


def allreduces_us(sizes: Sequence[int]) -> list[float]:
    """Return the time (us) of one allreduce of every size, with nothing else going on."""
    times_us = {nbytes: _allreduce_us(nbytes) for nbytes in sorted(set(sizes))}
    return [times_us[nbytes] for nbytes in sizes]


def _allreduce_us(nbytes: int) -> float:
    tensor = torch.zeros(nbytes // 4)
    times: list[float] = []
    for _ in range(_REPEATS):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def digest(model: nn.Module) -> str:
    """Return a digest of the weights: ranks that have the same have the same weights."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().numpy().tobytes())
    return sha.hexdigest()
