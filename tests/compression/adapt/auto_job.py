"""One rank of a job whose level is chosen automatically, run by test_auto.py."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headrace.compression import Accordion, Auto, CompressionError, ddp_hook
from headrace.compression.adapt import automatic
from headrace.compression.adapt.automatic import AutomaticHook

LEVELS = ("none", "minmax:4")
WINDOW = 3


def main() -> None:
    """Train while the times of levels change, on a clock of its own; write what was seen."""
    clock = [1.0]
    automatic.time = SimpleNamespace(perf_counter=lambda: clock[0])  # pyright: ignore
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    model = DistributedDataParallel(module, bucket_cap_mb=0.004)
    hook = ddp_hook(model, Auto(levels=LEVELS, window=WINDOW, budget=0.0))
    assert isinstance(hook, AutomaticHook)
    slow = {"none": 0.04, "minmax:4": 0.0}
    levels: list[str] = []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for step in range(60):
        if step == 30:
            slow = {"none": 0.0, "minmax:4": 0.04}
        clock[0] += 0.01 + slow[hook.level] + 0.002 * dist.get_rank()
        torch.manual_seed(100 * step + dist.get_rank())
        model(torch.randn(4, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        levels.append(hook.level)
    weights = torch.cat([each.detach().reshape(-1) for each in module.parameters()])
    every = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(every, weights)
    result: dict[str, Any] = {
        "levels": levels,
        "equal": all(torch.equal(each, weights) for each in every),
        "events": [row["event"] for row in hook.records.events],
        "metrics": [each.name for each in hook.metrics().collect()],
        "statistics": [hook.statistics.steps, hook.step, hook.statistics.sent_bytes],
        "schedule": _scheduled(clock),
        "differ": _differ(),
    }
    sys.stdout.write(f"RESULTS {json.dumps(result)}\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


def _scheduled(clock: list[float]) -> list[str]:
    """Return the problems of a job in which Accordion's level is the faster one."""
    torch.manual_seed(0)
    module = nn.Linear(64, 64)
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    schedule = Accordion(low="powersgd:2", high="powersgd:1", window=8, unit="steps")
    auto = Auto(levels=["none"], window=WINDOW, budget=0.0, schedule=schedule)
    hook = ddp_hook(model, auto, optimizer=optimizer)
    assert isinstance(hook, AutomaticHook)
    used: list[str] = []
    for _ in range(40):
        clock[0] += 0.04 if hook.level == "none" else 0.01
        model(torch.ones(2, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        used.append(str(hook.codecs["weight"]))
    assert hook.binding is not None
    problems = [] if hook.level == "accordion" else [f"the level is {hook.level}"]
    problems += [] if used[0] == "none" and used[-1].startswith("powersgd") else [f"used {used}"]
    # steps without compression count for the schedule, too: all but the last have ended
    problems += [] if hook.binding.steps == 39 else [f"{hook.binding.steps} steps of the schedule"]
    norms = [row["norms"] for row in hook.records.events if row["event"] == "levels"]
    problems += [] if norms and norms[0] else ["no norms of uncompressed steps"]
    return problems


def _differ() -> str:
    model = DistributedDataParallel(nn.Linear(4, 4))
    try:
        ddp_hook(model, Auto(window=4 + dist.get_rank()))
    except (CompressionError, RuntimeError) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
