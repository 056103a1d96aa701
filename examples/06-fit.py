"""A training step in half of its memory: one line more.

    python examples/06-fit.py            # half of what eager's step needs
    python examples/06-fit.py 14MiB      # another budget

docs/memory.md says what a budget covers; `headrace memory plan` plans without training.
"""

import sys
import warnings

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from headrace.memory import fit

BATCH = 64
STEPS = 30


def data() -> tuple[Tensor, Tensor]:
    """Return images of digits, 16 x 16, and their labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    return nn.functional.interpolate(images, scale_factor=2), torch.tensor(digits.target)


def network() -> nn.Module:
    """Return a convolutional network of six layers."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for index in range(6):
        layers += [nn.Conv2d(24 if index else 1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 10))


def main() -> None:
    """Train within the budget, and print losses, and memory beside that of eager's step."""
    images, labels = data()
    sample = images[:BATCH], labels[:BATCH]
    loss = nn.CrossEntropyLoss()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    budget = sys.argv[1] if len(sys.argv) > 1 else "12MiB"
    fitted = fit(model, sample, budget, loss=loss, optimizer=optimizer)  # the one line
    (plan,) = fitted.plans
    eager = plan.profile.eager
    assert eager is not None, plan.profile.provenance["eager"]
    print(
        f"eager's step: measured peak {eager.peak_bytes / 2**20:.1f} MiB, "
        f"{eager.time_us / 1e3:.1f} ms"
    )
    print(
        f"budget {budget}: predicted peak {plan.peak_bytes / 2**20:.1f} MiB, "
        f"{plan.time_us / 1e3:.1f} ms"
    )

    warnings.simplefilter("error")  # a step without a schedule would warn
    for step in range(STEPS):
        start = step * BATCH % (len(images) - BATCH)
        optimizer.zero_grad()
        found = fitted(images[start : start + BATCH], labels[start : start + BATCH])
        found.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step + 1}: loss {found.item():.3f}")


if __name__ == "__main__":
    main()
