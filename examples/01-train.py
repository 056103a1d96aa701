"""A DistributedDataParallel script with one line changed, under plain torchrun.

    torchrun --standalone --nproc-per-node 2 examples/01-train.py

On several hosts start it like any other script. Ranks of one host run proven templates;
03-testbed.sh makes plans for a network and trains with them (HEADRACE_PLAN_BOOK).
"""

import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 3


def data() -> tuple[TensorDataset, TensorDataset]:
    """Return digits to train on, and some held out: 64 pixels each, and labels."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    return TensorDataset(images[360:], labels[360:]), TensorDataset(images[:360], labels[:360])


def main() -> None:
    """Train, and print loss and accuracy."""
    torch.manual_seed(0)
    dist.init_process_group("headrace")  # was: "gloo"

    training, held_out = data()
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    model.append(nn.Linear(512, 10))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    sampler = DistributedSampler(training)
    loader = DataLoader(training, batch_size=32, sampler=sampler)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        started = time.perf_counter()
        total = torch.zeros(())
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total, dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            took_s = time.perf_counter() - started
            print(f"epoch {epoch}: loss {total.item() / len(loader):.3f}, {took_s:.2f} s")

    if dist.get_rank() == 0:
        images, labels = held_out.tensors
        right = (model(images).argmax(1) == labels).sum().item()
        print(f"accuracy on held-out images: {right / len(labels):.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
