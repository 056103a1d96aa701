"""Memory that a device has left for this process."""

from pathlib import Path

import torch

from headrace.host_memory import available_host_bytes


def available_bytes(device: torch.device, system: Path = Path("/")) -> int | None:
    """Return the bytes that a process can allocate on a device; None if that cannot be told.

    On an accelerator what is free, with blocks that torch's allocator keeps; on the CPU what the
    host leaves.

    Parameters
    ----------
    system : root of the files of the kernel.
    """
    if device.type == "cpu":
        return available_host_bytes(system)
    runtime = torch.get_device_module(device)
    if not hasattr(runtime, "mem_get_info"):
        return None
    free, _ = runtime.mem_get_info(device)
    return int(free + runtime.memory_reserved(device) - runtime.memory_allocated(device))
