"""One rank of a job whose plans and codecs both adapt; see test_announced.py.

Argument: "announced", or "silent" to leave out the announcements of other codecs.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headrace.torch
from headrace.compression import Accordion, ddp_hook
from headrace.compression.run import hook

WIDTH, STEPS, DECAY_AT = 256, 31, 24
COMPUTE_S = 0.2  # what other work on the machine adds is little beside it
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
        time.sleep(COMPUTE_S)
        nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
        headrace.torch.step()
        levels.append(str(ours.codecs["0.weight"]))
    return levels


def main(how: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("headrace")
    if how == "silent":
        hook.mark_step = lambda **_: None
    levels = train()
    print(json.dumps({"rank": dist.get_rank(), "levels": levels}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
