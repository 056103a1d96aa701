"""One rank of the section `groups`: makes and destroys groups of both backends in turn."""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

BACKENDS = ("gloo", "headrace")
TIMEOUT = timedelta(seconds=120)


def open_files() -> int:
    """Return the number of open file descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def main() -> None:
    """Print as JSON rank 0's times, processor times (ms) and descriptors by backend."""
    repeats = int(sys.argv[1])
    dist.init_process_group("gloo", timeout=TIMEOUT)
    ms: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    cpu_ms: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    descriptors = dict.fromkeys(BACKENDS, 0)
    for _ in range(repeats):
        for backend in BACKENDS:
            dist.barrier()
            before = open_files()
            began, began_cpu = time.perf_counter(), time.process_time()
            group = dist.new_group(backend=backend, timeout=TIMEOUT)
            ms[backend].append(1e3 * (time.perf_counter() - began))
            cpu_ms[backend].append(1e3 * (time.process_time() - began_cpu))
            descriptors[backend] = max(descriptors[backend], open_files() - before)
            ones = torch.ones(8)
            dist.all_reduce(ones, group=group)
            assert ones.tolist() == [dist.get_world_size()] * 8
            dist.destroy_process_group(group)
            del group
    if dist.get_rank() == 0:
        print(json.dumps({"ms": ms, "cpu_ms": cpu_ms, "descriptors": descriptors}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
