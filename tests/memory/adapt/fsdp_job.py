"""Rank of a job that trains fitted blocks under FSDP2, beside the same ones without plans.

Its arguments are the backend and the budget. Over Gloo, gradients are compared; over torch's fake
backend, the allocations of a step with the budget: Gloo's threads free memory late, and what they
free, the profiler of the main thread does not see.
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
from torch.testing._internal.distributed.fake_pg import FakeStore

from headrace.memory import fit_blocks
from headrace.memory.measure.allocations import allocations_of
from tests.memory.adapt.test_blocks import CPU, WIDTH, Chain, sample

ROWS = 256
"""So few that parameters count, too."""


def peak(model: torch.nn.Module, x: torch.Tensor) -> int:
    """Return the bytes of a step, with the rank's parameters and input."""
    there = x.nbytes + sum(cast(DTensor, each).to_local().nbytes for each in model.parameters())
    model.zero_grad()
    step = allocations_of(lambda: model(x).square().mean().backward(), CPU)
    return there + step.peak_bytes


def networks(budget: int) -> tuple[Chain, Chain, int]:
    """Return the sharded network without plans, the fitted one, and the predicted peak of this."""
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
    return plain, fitted, predicted


def train(plain: Chain, fitted: Chain) -> None:
    """Train both, and compare their gradients in every step."""
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
    print("equal after 3 steps", flush=True)


def main(backend: str, budget: int) -> None:
    torch.set_num_threads(1)
    if backend == "fake":
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        plain, fitted, predicted = networks(budget)
        for model in (plain, fitted):
            peak(model, sample(ROWS))  # creates the state that FSDP2 keeps between steps
        fitted_bytes, plain_bytes = (peak(model, sample(ROWS)) for model in (fitted, plain))
        figures = f"{fitted_bytes} of {predicted} within {budget}, {plain_bytes} without"
        assert fitted_bytes <= predicted <= budget < plain_bytes, figures
        print(figures, flush=True)
    else:
        dist.init_process_group(backend)
        plain, fitted, _ = networks(budget)
        train(plain, fitted)
    del plain, fitted
    gc.collect()  # cycles of FSDP2 would keep Gloo's threads until Python ends: a crash
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
