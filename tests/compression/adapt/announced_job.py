"""One rank of a job whose codecs change: what it calls in every step; see test_announced.py."""

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headrace.torch
from headrace.collectives.run.torch.group import HeadraceGroup
from headrace.compression import Accordion, ddp_hook

WIDTH, STEPS, DECAY_AT = 256, 31, 24
SCHEDULE = Accordion(low="none", high="powersgd:1", eta=1e6, window=7, unit="steps")


def train() -> list[str]:
    """Return the level of every step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, 10))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = ddp_hook(ddp, SCHEDULE, optimizer=optimizer)
    source = torch.Generator().manual_seed(dist.get_rank())
    levels: list[str] = []
    for number in range(STEPS):
        if number == DECAY_AT:
            optimizer.param_groups[0]["lr"] = 0.005
        images = torch.randn(16, WIDTH, generator=source)
        labels = torch.randint(0, 10, (16,), generator=source)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
        headrace.torch.step()
        levels.append(str(ours.codecs["0.weight"]))
    return levels


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("headrace")
    group = dist.distributed_c10d._get_default_group()
    assert isinstance(group, HeadraceGroup)
    group.switch.record()
    levels = train()
    keys = [key for key, _ in group.switch.recorded()]
    print("RESULTS", json.dumps({"levels": levels, "keys": keys}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
