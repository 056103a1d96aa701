"""torch.compile of a model in DistributedDataParallel on headrace, within a memory budget.

    torchrun --standalone --nproc-per-node 2 examples/16-compile.py

headrace's backend is compiled around, and `partitioner` chooses what the compiled steps store for
the backward pass. It needs a C++ compiler, as torch.compile on a CPU does.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headrace.memory import partitioner

BATCH = 32


def main() -> None:
    """Train, and print whether all ranks have the same parameters."""
    dist.init_process_group("headrace")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # DDP begins with rank 0's parameters
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(network)
    compiled = torch.compile(
        model, dynamic=False, options={"custom_partitioner_fn": partitioner("1MiB")}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32)[rank::ranks] / 16
    labels = torch.tensor(digits.target)[rank::ranks]
    # whole batches, as many on every rank: another size would be compiled anew
    steps = len(digits.target) // ranks // BATCH
    for epoch in range(3):
        for step in range(steps):
            batch = slice(step * BATCH, (step + 1) * BATCH)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(compiled(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")

    checksum = torch.cat([p.detach().flatten() for p in model.parameters()]).double().sum()
    checksums = [torch.zeros_like(checksum) for _ in range(ranks)]
    dist.all_gather(checksums, checksum)
    if rank == 0:
        print(f"backend {dist.get_backend()}, model {type(compiled).__name__}")
        print(f"ranks equal: {len(set(map(float, checksums))) == 1}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
