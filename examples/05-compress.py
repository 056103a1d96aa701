"""DistributedDataParallel with compressed gradients: one line more.

    python examples/05-compress.py                  # two ranks on this machine
    torchrun --standalone --nproc-per-node 2 examples/05-compress.py powersgd:2

Whether it makes a job faster, and with which codec, `headrace compression plan` predicts: see
docs/compression.md.
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headrace.compression import ddp_hook

RANKS = 2
EPOCHS = 8
BATCH = 32


def data() -> tuple[Tensor, Tensor]:
    """Return images of digits, 64 pixels each, and their labels."""
    digits = load_digits()
    return torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)


def train(codec: str) -> None:
    """Train, and print loss, accuracy and bytes."""
    torch.manual_seed(0)
    dist.init_process_group("headrace")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, labels = data()
    mine = slice(360 + rank, None, ranks)  # the first 360 are held out

    network = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
    network.append(nn.Linear(256, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hook = ddp_hook(model, codec)  # the one line

    for epoch in range(EPOCHS):
        order = torch.randperm(len(images[mine]))
        for batch in order.split(BATCH)[: len(images[360:]) // ranks // BATCH]:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[mine][batch]), labels[mine][batch])
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")

    if rank == 0:
        right = (network(images[:360]).argmax(1) == labels[:360]).sum().item()
        size = sum(p.nbytes for p in network.parameters())
        plain = 2 * (ranks - 1) / ranks * size * hook.statistics.steps
        print(f"{codec}: {hook.statistics.sent_bytes / plain:.1%} of the uncompressed bytes")
        print(f"accuracy on held-out images: {right / 360:.1%}")
    dist.destroy_process_group()


def one_rank(rank: int, port: int, codec: str) -> None:
    """Be a rank, as torchrun would start it."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)  # as torchrun does: ranks share this machine's processors
    train(codec)


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "minmax:4"
    if "RANK" in os.environ:
        train(chosen)
    else:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
        torch.multiprocessing.spawn(one_rank, args=(free, chosen), nprocs=RANKS)
