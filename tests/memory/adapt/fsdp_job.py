"""Rank of a job that trains fitted blocks under FSDP2, beside the same ones without plans.

Its argument is the budget, which the allocations of a step are compared with.
"""

import gc
import sys
import warnings
from copy import deepcopy
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from headrace.memory import fit_blocks
from headrace.memory.measure.allocations import allocations_of
from tests.memory.adapt.test_blocks import CPU, WIDTH, Chain, sample

ROWS = 256
"""So few that parameters count, too."""


def peak(model: torch.nn.Module, x: torch.Tensor) -> int:
    """Return the bytes of a step, with the rank's parameters and input.

    What Gloo's threads free is not seen, in more steps the busier the machine is: the least of many
    steps is the nearest.
    """
    there = x.nbytes + sum(cast(DTensor, each).to_local().nbytes for each in model.parameters())
    found: list[int] = []
    for _ in range(50):
        model.zero_grad()
        step = allocations_of(lambda: model(x).square().mean().backward(), CPU)
        found.append(step.peak_bytes)
    return there + min(found)


def check(budget: int) -> None:
    """Train both, and compare gradients and peaks."""
    torch.manual_seed(0)
    plain = Chain()
    fitted = deepcopy(plain)
    count = dist.get_world_size()
    blocks = fit_blocks(fitted, list(fitted.layers), sample(ROWS), budget, shards=count)
    predicted = blocks.set_budget(budget)
    for model in (plain, fitted):
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    warnings.simplefilter("error")  # a step without a schedule would warn
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (plain, fitted)]
    for step in range(3):
        generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
        x = torch.randn(ROWS, WIDTH, generator=generator)
        for model, optimizer in zip((plain, fitted), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(x).square().mean().backward()
        shards: list[list[torch.Tensor]] = [
            [cast(DTensor, each.grad).to_local() for each in model.parameters()]
            for model in (plain, fitted)
        ]
        assert all(map(torch.equal, *shards)), step
        for optimizer in optimizers:
            optimizer.step()
    found, without = (peak(model, sample(ROWS)) for model in (fitted, plain))
    assert found <= predicted <= budget < without, (found, predicted, budget, without)
    print(f"equal after 3 steps, {found} of {predicted}, {without} without", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    check(int(sys.argv[1]))
    gc.collect()  # cycles of FSDP2 would keep Gloo's threads until Python ends: a crash
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
