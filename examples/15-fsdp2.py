"""A model that FSDP2 shards, on headrace, with compressed gradients: one line more.

    torchrun --standalone --nproc-per-node 2 examples/15-fsdp2.py

docs/compression.md has what is sent then; `headrace.memory.fit_blocks` fits the blocks of such a
model into a memory budget before they are sharded (docs/memory.md).
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from headrace.compression import fsdp_hook

BATCH = 32


def batches(rank: int, ranks: int) -> list[tuple[Tensor, Tensor]]:
    """Return a rank's images of digits and their labels: as many batches as every rank has."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32)[rank::ranks] / 16
    labels = torch.tensor(digits.target)[rank::ranks]
    count = len(digits.target) // ranks // BATCH
    return list(zip(images.split(BATCH), labels.split(BATCH), strict=True))[:count]


def main() -> None:
    """Train, and print whether all ranks have the same parameters, and the share of the bytes."""
    dist.init_process_group("headrace")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # shards are of one model
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    hook = fsdp_hook(model, "minmax:4")  # the one line
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    for epoch in range(3):
        for inputs, targets in batches(rank, ranks):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")

    checksum = sum(p.full_tensor().double().sum() for p in model.parameters())
    checksums = [torch.zeros_like(checksum) for _ in range(ranks)]
    dist.all_gather(checksums, checksum)
    if rank == 0:
        figures = hook.figures()
        print(f"backend {dist.get_backend()}, model {type(model).__name__}")
        print(f"ranks equal: {len(set(map(float, checksums))) == 1}")
        print(f"minmax:4: {figures['sent_bytes'] / figures['plain_bytes']:z.1%} of the bytes")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
