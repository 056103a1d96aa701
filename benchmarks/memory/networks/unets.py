"""UNet and 3D-UNet: an encoder and a decoder with connections between equal resolutions."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class UNet(nn.Module):
    """UNet (Ronneberger et al. 2015, figure 1) with batch norms and padded convolutions.

    Forward operators: 67, as the paper's program has (Table 4.5). Sides of inputs are multiples of
    16.
    """

    def __init__(self, channels: int = 3, classes: int = 2, width: int = 64) -> None:
        super().__init__()
        widths = [width << level for level in range(5)]
        self.encoder = nn.ModuleList(
            _pair(inputs, outputs)
            for inputs, outputs in zip([channels, *widths], widths, strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        upwards = [*zip(widths[:0:-1], widths[-2::-1], strict=True)]
        self.up = nn.ModuleList(nn.ConvTranspose2d(low, high, 2, 2) for low, high in upwards)
        self.decoder = nn.ModuleList(_pair(low, high) for low, high in upwards)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        kept: list[Tensor] = []
        outputs = inputs
        for level, stage in enumerate(self.encoder):
            outputs = stage(self.pool(outputs) if level else outputs)
            kept.append(outputs)
        kept.pop()
        for up, stage in zip(self.up, self.decoder, strict=True):
            outputs = stage(torch.cat([kept.pop(), up(outputs)], 1))
        return self.head(outputs)


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    """Return two 3 x 3 convolutions with batch norms and ReLUs."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


class UNet3D(nn.Module):
    """3D-UNet (Cicek et al. 2016, figure 2), with the group norms and widths of A.3's version.

    Four resolutions; a stage's first convolution of the encoder has half of its channels. The
    decoder enlarges by the nearest neighbour and concatenates. Sides are multiples of 8.
    """

    def __init__(self, channels: int = 1, classes: int = 1, width: int = 32) -> None:
        super().__init__()
        widths = [width << level for level in range(4)]
        self.encoder = nn.ModuleList(
            nn.Sequential(_normed(inputs, outputs // 2), _normed(outputs // 2, outputs))
            for inputs, outputs in zip([channels, *widths], widths, strict=False)
        )
        self.pool = nn.MaxPool3d(2)
        self.decoder = nn.ModuleList(
            nn.Sequential(_normed(low + high, high), _normed(high, high))
            for low, high in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        kept: list[Tensor] = []
        outputs = inputs
        for level, stage in enumerate(self.encoder):
            outputs = stage(self.pool(outputs) if level else outputs)
            kept.append(outputs)
        kept.pop()
        for stage in self.decoder:
            beside = kept.pop()
            larger = functional.interpolate(outputs, size=beside.shape[2:], mode="nearest")
            outputs = stage(torch.cat([beside, larger], 1))
        return self.head(outputs)


def _normed(inputs: int, outputs: int) -> nn.Sequential:
    """Return a group norm (8 groups, one for few channels), a 3 x 3 x 3 convolution and a ReLU."""
    return nn.Sequential(
        nn.GroupNorm(8 if inputs >= 8 else 1, inputs),
        nn.Conv3d(inputs, outputs, 3, padding=1, bias=False),
        nn.ReLU(),
    )
