"""Accelerate with compressed gradients: one line more than 08-accelerate.py.

pip install accelerate
torchrun --standalone --nproc-per-node 2 examples/05-compress-accelerate.py
"""

from datetime import timedelta

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from headrace.compression import ddp_hook
from headrace.torch import init_from_torchrun


def main() -> None:
    """Train, and print the loss and the share of the bytes."""
    init_from_torchrun(timeout=timedelta(minutes=5))
    accelerator = Accelerator(cpu=not torch.cuda.is_available())

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(images, torch.tensor(digits.target)), 32, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    hook = ddp_hook(model, "minmax:4")  # the one line

    for epoch in range(3):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")

    figures = hook.figures()
    share = figures["sent_bytes"] / figures["plain_bytes"]
    accelerator.print(f"minmax:4: {share:.1%} of the uncompressed bytes")
    accelerator.end_training()


if __name__ == "__main__":
    main()
