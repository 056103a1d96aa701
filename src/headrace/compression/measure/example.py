"""The model that is measured where none is named: a perceptron on random data."""

import itertools

import torch
from torch import nn

WIDTHS = (784, 1024, 512, 10)
BATCH = 64


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    """Return the model and a batch."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for wide, narrow in itertools.pairwise(WIDTHS):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), torch.randn(BATCH, WIDTHS[0])
