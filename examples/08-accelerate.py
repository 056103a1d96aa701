"""Accelerate on headrace: the process group is made before the Accelerator.

    pip install accelerate
    torchrun --standalone --nproc-per-node 2 examples/08-accelerate.py

Accelerate accepts backends of its own list only, but it takes a process group that exists. Without
a GPU it needs `cpu=True` (or `accelerate launch --cpu`): else it trains every rank by itself.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from headrace.torch import init_from_torchrun


def main() -> None:
    """Train, and print whether all ranks have the same parameters."""
    init_from_torchrun(timeout=timedelta(minutes=5))
    accelerator = Accelerator(cpu=not torch.cuda.is_available())

    torch.manual_seed(accelerator.process_index)  # DDP begins with rank 0's parameters
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(images, torch.tensor(digits.target)), 32, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(3):
        total = torch.zeros((), device=accelerator.device)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
        mean = accelerator.reduce(total, "mean") / len(loader)
        accelerator.print(f"epoch {epoch}: loss {mean:.3f}")

    checksum = torch.cat([p.detach().flatten() for p in model.parameters()]).double().sum()
    checksums = accelerator.gather(checksum.reshape(1))
    accelerator.print(f"backend {dist.get_backend()}, model {type(model).__name__}")
    accelerator.print(f"ranks equal: {bool((checksums == checksums[0]).all())}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
