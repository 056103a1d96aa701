"""Bytes that a function allocates: their peak, and what it leaves."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

from headrace.memory.errors import CaptureError
from headrace.memory.measure.sizes import ROUNDING


@dataclass(frozen=True, slots=True)
class Allocations:
    """Bytes above those at the beginning of a function.

    Attributes
    ----------
    peak_bytes : at most at any time.
    kept_bytes : at its end; negative if it freed earlier memory.
    """

    peak_bytes: int
    kept_bytes: int


def allocations_of(
    run: Callable[[], object], device: torch.device, *, aligned: bool = False
) -> Allocations:
    """Run a function and return what it allocates on a device.

    On the CPU every allocation is recorded by torch's profiler, in the calling thread; libraries
    that allocate past torch (oneDNN's scratchpads) are not seen. What `run` returns is kept until
    its end. On an accelerator the allocator's own statistics are read, and its peak is reset.

    Parameters
    ----------
    aligned : whether each allocation on the CPU counts as aligned, as storages of a graph do.

    Raises
    ------
    CaptureError
        If a profiler of torch is running, on the CPU.
    """
    if device.type != "cpu":
        return _on_accelerator(run, device)
    return _on_cpu(run, ROUNDING["cpu"] if aligned else 1)


def library_bytes(device: torch.device) -> int:
    """Return the bytes that cuBLAS keeps of a device's memory, for the threads of both passes.

    Some versions of torch allocate its workspace for each call instead, where it is measured.
    """
    if device.type != "cuda":
        return 0
    torch._C._cuda_clearCublasWorkspaces()
    x, bias = (torch.zeros(shape, device=device, requires_grad=True) for shape in ((64, 64), (64,)))
    before = torch.cuda.memory_allocated(device)
    torch.nn.functional.linear(x @ x, x, bias).sum().backward()
    x.grad = bias.grad = None
    return torch.cuda.memory_allocated(device) - before


def _on_cpu(run: Callable[[], object], alignment: int) -> Allocations:
    config = ProfilerConfig(
        ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig()
    )
    try:
        torch.autograd._enable_profiler_legacy(config)
    except RuntimeError as error:
        raise CaptureError(
            "a profiler of torch is running, and memory on the CPU is measured by another: start "
            "it when a first step has run"
        ) from error
    try:
        outputs = run()
    finally:
        threads = torch.autograd._disable_profiler_legacy()
    del outputs
    now = peak = 0
    records: Iterable[Any] = chain.from_iterable(threads)
    for record in records:
        if record.kind() == "memory_alloc":
            nbytes = record.cpu_memory_usage()  # negative for a release
            count = -(-abs(nbytes) // alignment) * alignment
            now += count if nbytes > 0 else -count
            peak = max(peak, now)
    return Allocations(peak, now)


def _on_accelerator(run: Callable[[], object], device: torch.device) -> Allocations:
    memory = torch.get_device_module(device)
    memory.synchronize(device)
    memory.reset_peak_memory_stats(device)
    before = memory.memory_allocated(device)
    outputs = run()
    memory.synchronize(device)
    peak = memory.max_memory_allocated(device) - before
    after = memory.memory_allocated(device) - before
    del outputs
    return Allocations(peak, after)
