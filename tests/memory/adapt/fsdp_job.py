"""Rank of a job that trains fitted blocks under FSDP2, beside the same ones without plans."""

import warnings
from copy import deepcopy
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from headrace.memory import fit_blocks
from tests.memory.adapt.test_blocks import Chain, sample


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    plain = Chain()
    fitted = deepcopy(plain)
    fit_blocks(fitted, list(fitted.layers), sample(), "2.6MiB", shards=dist.get_world_size())
    for model in (plain, fitted):
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    warnings.simplefilter("error")  # a step without a schedule would warn
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (plain, fitted)]
    for step in range(3):
        generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
        x = torch.randn(512, sample().shape[1], generator=generator)
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
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
