"""One rank of a job with adaptation on and off in turn: ``python -m ...overhead_rank TASK``.

The task is JSON: {"buckets", "compute_s", "pairs", "steps"}. Every part makes a group of its own,
which has all threads of adaptation or none, takes `steps` steps, and closes the group. Every rank
writes the times of its steps, and its processor time a step.
"""

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.jobs import emit
from benchmarks.network.loop import Loop

WARM_UP = 30
"""Steps, in which adaptation detects the period and its planning process loads: once a job."""


def main() -> None:
    """Take turns, in an order that changes from pair to pair."""
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    loop = Loop(task["buckets"], task["compute_s"])
    for pair in range(task["pairs"]):
        for mode in ("on", "off") if pair % 2 else ("off", "on"):
            os.environ["HEADRACE_ADAPT"] = mode
            group: Any = dist.new_group(backend="headrace")
            loop.reset()
            times: list[float] = []
            cpu = 0.0
            for number in range(WARM_UP + task["steps"]):
                if number == WARM_UP:
                    cpu = time.process_time()
                began = time.perf_counter()
                loop.step(number, group)
                times.append((time.perf_counter() - began) * 1e3)
            cpu = (time.process_time() - cpu) / task["steps"]
            swaps = group.switch.epoch
            dist.destroy_process_group(group)
            ms = times[WARM_UP:]
            emit("part", pair=pair, mode=mode, ms=ms, cpu_ms=cpu * 1e3, swaps=swaps)
    emit("done", wrong=loop.wrong)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
