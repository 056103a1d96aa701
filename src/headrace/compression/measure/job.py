"""A compression profile, measured by the ranks of a job."""

import copy
import os
import resource
import socket
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from headrace.compression.averaging import Averager
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.measure.computing import averaging_us, time_codecs
from headrace.compression.measure.step import (
    WARM_UP,
    LossOf,
    ObservedModel,
    OptimizerOf,
    StepTimes,
    contention_of,
    slowest,
    typical,
)
from headrace.compression.names import parameter_names
from headrace.compression.policy import Policy
from headrace.compression.profile import (
    MEASURED,
    CodecTiming,
    CompressionProfile,
    GradientBucket,
    ModelTensor,
)
from headrace.job.load import LoadWatch, MachineLoad, busiest

CODECS = ("bf16", "minmax:4", "sign", "topk:1%", "powersgd:2", "powersgd:4")
"""Codecs that are timed unless others are named: one of each kind."""

_REPEATS = 7  # of a codec's computation, if there are as many steps
_BESIDE = "bf16"  # computes as long as wished, on any tensors


def profile_model(
    model: nn.Module,
    loss_of: LossOf,
    *,
    name: str,
    batch: int,
    codecs: Sequence[CodecSpec | str] = CODECS,
    optimizer: OptimizerOf | None = None,
    group: Any = None,
    policy: Policy | None = None,
    bucket_cap_mb: float = 25.0,
    ranks_per_host: int = 0,
    steps: int = 10,
) -> CompressionProfile:
    """Measure a model's step, and codecs on its gradients; all ranks of the group call it.

    The model is copied, so its parameters do not change. The copy is trained under
    DistributedDataParallel: without communication, for the times of computing, then with it, for
    gamma, and with a codec beside it, for the contention. Then all ranks encode at once.

    Parameters
    ----------
    model : not wrapped; the same on all ranks.
    loss_of : the forward pass of a batch through the model that it is given.
    name, batch : of the model, and examples of a rank's batch, for the profile.
    optimizer : made for the copy's parameters, so that its time is in `other_us`.
    group : of the ranks (default: all); with other backends than Gloo, too.
    policy : which parameters are compressed.
    bucket_cap_mb : as DistributedDataParallel's.
    ranks_per_host : of the group (default: by the ranks' host names).
    steps : that count, of each kind.

    Returns
    -------
    CompressionProfile
        The same on all ranks: medians over steps of the rank that is the last at each point, as
        exchanges wait for it; codec times are the medians of the slowest rank.

    Raises
    ------
    CompressionError : fewer than two ranks or three steps, or no such codec.
    """
    _check(steps, group)
    watch = LoadWatch()
    options: dict[str, Any] = {
        "optimizer": optimizer,
        "bucket_cap_mb": bucket_cap_mb,
        "group": group,
    }
    plain, summed = (
        ObservedModel(copy.deepcopy(model), loss_of, communicate=communicates, **options)
        for communicates in (False, True)
    )
    columns = {
        **_step_fields(model, plain, summed, steps, group),
        **_codec_fields(model, plain, codecs, policy, steps, group),
        **_machine_fields(model, ranks_per_host, group),
    }
    provenance = _provenance(steps, group, agreed_load(watch.load(), group))
    return CompressionProfile(model=name, batch=batch, **columns, provenance=provenance)


def agreed_load(load: MachineLoad, group: Any = None) -> MachineLoad:
    """Return the busiest rank's load; all ranks of the group call it."""
    return busiest([MachineLoad(**row) for row in _gathered(asdict(load), group)])


def _check(steps: int, group: Any) -> None:
    if steps < 3:
        raise CompressionError(f"steps is {steps}, needs at least 3")
    if (ranks := dist.get_world_size(group)) < 2:
        raise CompressionError(f"the group has {ranks} rank, needs at least 2 to measure a job")


def _provenance(steps: int, group: Any, load: MachineLoad) -> dict[str, Any]:
    ranks = dist.get_world_size(group)
    return {
        "kind": MEASURED,
        "source": f"headrace compression: {ranks} ranks, {steps} steps of each kind",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        **load.to_provenance(),
    }


def _step_fields(
    model: nn.Module, plain: ObservedModel, summed: ObservedModel, steps: int, group: Any
) -> dict[str, Any]:
    """Measure steps; return the profile's parameters, buckets, times and gamma.

    Parameters
    ----------
    plain, summed : copies of the model that communicate nothing, and that average gradients.
    """
    alone_steps, beside_steps = _take_turns(plain, summed, steps, group)
    alone, beside = (
        typical(_slowest(steps_of_mode, group)) for steps_of_mode in (alone_steps, beside_steps)
    )
    gamma = beside.backward / max(alone.backward, 1e-9)
    buckets = _buckets(model, plain)
    return {
        "tensors": tuple(tensor for bucket in buckets for tensor in bucket),
        "buckets": tuple(
            GradientBucket(tensors=len(bucket), ready_us=ready)
            for bucket, ready in zip(buckets, _ascending(alone), strict=True)
        ),
        "forward_us": alone.forward,
        "backward_us": alone.backward,
        "other_us": alone.other,
        "gamma": max(1.0, gamma),
    }


def _codec_fields(
    model: nn.Module,
    plain: ObservedModel,
    codecs: Sequence[CodecSpec | str],
    policy: Policy | None,
    steps: int,
    group: Any,
) -> dict[str, Any]:
    """Return the profile's times of codecs, all ranks encoding at once, and the contention.

    Parameters
    ----------
    plain : the copy of the model that communicates nothing, after its first steps.
    """
    buckets, ranks = _buckets(model, plain), dist.get_world_size(group)
    timings = time_codecs(
        codecs,
        buckets,
        ranks=ranks,
        rank=dist.get_rank(group),
        policy=policy,
        barrier=lambda: dist.barrier(group=group),
        device=plain.device,
        repeats=min(steps, _REPEATS),
        step=plain.step,
    )
    tensors = [tensor for bucket in buckets for tensor in bucket]
    contention = _contention(plain, tensors, ranks, steps, group)
    return {"codecs": agreed_timings(timings, group), "contention": contention}


def _machine_fields(model: nn.Module, ranks_per_host: int, group: Any) -> dict[str, Any]:
    """Return the profile's device, its memory, and the ranks of a host (0: by host names)."""
    on_a_host = ranks_per_host or _most_on_a_host(group)
    return {
        "device": _device(model),
        "ranks_per_host": min(dist.get_world_size(group), 1024, on_a_host),
        **_memory(model),
    }


def agreed_timings(timings: Mapping[str, CodecTiming], group: Any = None) -> dict[str, CodecTiming]:
    """Return the slowest rank's times; all ranks of the group call it, with the same codecs."""
    every = _gathered({name: asdict(timing) for name, timing in timings.items()}, group)
    return {
        name: CodecTiming(
            elements=timing.elements,
            encode_us=_most([timed[name]["encode_us"] for timed in every]),
            decode_us=_most([timed[name]["decode_us"] for timed in every]),
        )
        for name, timing in timings.items()
    }


def _take_turns(
    plain: ObservedModel, summed: ObservedModel, steps: int, group: Any
) -> tuple[list[StepTimes], list[StepTimes]]:
    """Return the steps' times without and with communication, measured by turns."""
    taken: tuple[list[StepTimes], list[StepTimes]] = ([], [])
    for number in range(WARM_UP + steps):
        for observed, step_times in zip((plain, summed), taken, strict=True):
            dist.barrier(group=group)
            times = observed.step()
            if number >= WARM_UP:
                step_times.append(times)
    return taken


def _buckets(model: nn.Module, observed: ObservedModel) -> list[list[ModelTensor]]:
    """Return the parameters of every bucket, in the order in which they become ready."""
    tensors = {
        name: ModelTensor(
            name=name, shape=tuple(parameter.shape), element_bytes=parameter.dtype.itemsize
        )
        for parameter, name in parameter_names(model).items()
    }
    return [[tensors[name] for name in bucket] for bucket in observed.buckets]


def _contention(
    observed: ObservedModel, tensors: Sequence[ModelTensor], ranks: int, steps: int, group: Any
) -> float:
    """Return the median of the ranks' contention, with all of them encoding."""
    averager = Averager(
        Policy(codec=_BESIDE, smallest=0, one_dimension=True),
        {tensor.name: tensor.shape for tensor in tensors},
        rank=0,
        ranks=ranks,
    )
    gradients = [
        (t.name, torch.zeros(t.shape, dtype=torch.float32, device=observed.device)) for t in tensors
    ]

    def work() -> None:
        averaging_us(averager, gradients)

    dist.barrier(group=group)
    contention = contention_of(observed, work, steps)
    return min(100.0, statistics.median(_gathered(contention, group)))


def _slowest(steps: Sequence[StepTimes], group: Any) -> list[StepTimes]:
    """Return each step's times of the rank that is the last."""
    every = _gathered([asdict(times) for times in steps], group)
    return [slowest([StepTimes(**fields) for fields in step]) for step in zip(*every, strict=True)]


def _gathered(value: Any, group: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def _most(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(map(max, zip(*rows, strict=True)))


def _ascending(times: StepTimes) -> list[float]:
    """Return the times of readiness, in order: medians of noisy times need not be."""
    ready: list[float] = []
    for ready_us in times.ready:
        ready.append(min(times.backward, max(ready_us, ready[-1] if ready else 0.0)))
    return ready


def _most_on_a_host(group: Any) -> int:
    return max(Counter(_gathered(socket.gethostname(), group)).values())


def _device(model: nn.Module) -> str:
    device = next(model.parameters()).device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{named[0] if named else 'CPU'}, {torch.get_num_threads()} threads"


def _memory(model: nn.Module) -> dict[str, int]:
    """Return the device's memory, and the most of it that this process has used."""
    device = next(model.parameters()).device
    if device.type == "cuda":
        _, total_bytes = torch.cuda.mem_get_info(device)
        return {"memory_bytes": total_bytes, "used_bytes": torch.cuda.max_memory_allocated(device)}
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux
    return {"memory_bytes": pages, "used_bytes": min(used, pages)}
