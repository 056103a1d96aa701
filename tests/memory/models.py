"""Small models of the kinds that schedules have to cope with, and their inputs."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

Case = Callable[[], tuple[Any, tuple[torch.Tensor, ...]]]


class Residual(nn.Module):
    """Two convolutions with batch normalization, around which the input passes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.inner(x))


class TiedTransformer(nn.Module):
    """Encoder layers with dropout, and a head that shares the embedding's weight."""

    def __init__(self, words: int = 50, width: int = 32, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(4, 8, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


class Combined(nn.Module):
    """Several inputs, views of a product, and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(6, 12)
        self.right = nn.Linear(6, 12)
        self.right.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = (self.left(x) * self.right(y)).split(6, dim=-1)
        return torch.tanh(a) @ b.t(), torch.nn.functional.dropout(a, 0.3)


class SquareLoss(nn.Module):
    """Sum of squares; the target counts for nothing."""

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.square().sum()


class Solving(nn.Module):
    """Solves equations with the input's matrix, which PyTorch checks for being singular."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(x, self.linear(x))


def perceptron() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    layers = [nn.Linear(32, 32) if i % 2 else nn.Tanh() for i in range(9)]
    return nn.Sequential(*layers), (torch.randn(64, 32),)


def convolutional() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 64, 10),
    )
    return model, (torch.randn(4, 3, 16, 16),)


def residual() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        *(Residual(8) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    return model, (torch.randn(4, 3, 16, 16),)


def transformer() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return TiedTransformer(), (torch.randint(0, 50, (4, 16)),)


class Decoder(nn.Module):
    """Interpolations of all kinds, with a skip connection, as in a U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.last = nn.Conv2d(7, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = torch.nn.functional.softshrink(self.first(x), 0.1)
        for options in (
            {"mode": "bilinear", "align_corners": False},
            {"mode": "bicubic", "align_corners": True, "antialias": True},
            {"mode": "nearest-exact"},
        ):
            features = torch.nn.functional.interpolate(features, x.shape[2:], **options)
        features = self.last(torch.cat((features, x), 1))
        return torch.nn.functional.interpolate(features, scale_factor=2).mean((2, 3))


def decoder() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Decoder(), (torch.randn(2, 3, 12, 12),)


def recurrent() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Recurrent(), (torch.randn(2, 3, 4),)


CASES: Mapping[str, Case] = {
    each.__name__: each
    for each in (perceptron, convolutional, residual, transformer, decoder, recurrent)
}
