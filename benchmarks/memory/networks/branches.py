"""Networks whose blocks concatenate branches: GoogLeNet, DenseNet-121 and SqueezeNet."""

import torch
from torch import Tensor, nn

from benchmarks.memory.networks.chains import convolution


class Inception(nn.Module):
    """Four branches, concatenated (Szegedy et al. 2015, figure 2b), with batch norms.

    The third branch has a 3 x 3 convolution where the paper has 5 x 5, as in the version of
    GoogLeNet with batch norms that frameworks ship.
    """

    def __init__(
        self, inputs: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int
    ) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            (
                convolution(inputs, one, 1),
                nn.Sequential(convolution(inputs, three[0], 1), convolution(*three, 3)),
                nn.Sequential(convolution(inputs, five[0], 1), convolution(*five, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), convolution(inputs, pool, 1)),
            )
        )
        self.outputs = one + three[1] + five[1] + pool

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([branch(inputs) for branch in self.branches], 1)


class GoogLeNet(nn.Module):
    """GoogLeNet (Szegedy et al. 2015, table 1) with batch norms, without auxiliary heads.

    `blocks` are its nine inception modules; the poolings between them belong to the one before.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, 64, 7, stride=2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            convolution(64, 64, 1),
            convolution(64, 192, 3),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        )
        channels = 192
        blocks: list[nn.Module] = []
        for one, three, five, pool, pooled in (
            (64, (96, 128), (16, 32), 32, 0),
            (128, (128, 192), (32, 96), 64, 3),
            (192, (96, 208), (16, 48), 64, 0),
            (160, (112, 224), (24, 64), 64, 0),
            (128, (128, 256), (24, 64), 64, 0),
            (112, (144, 288), (32, 64), 64, 0),
            (256, (160, 320), (32, 128), 128, 2),
            (256, (160, 320), (32, 128), 128, 0),
            (384, (192, 384), (48, 128), 128, 0),
        ):
            module = Inception(channels, one, three, five, pool)
            channels = module.outputs
            blocks.append(
                nn.Sequential(module, nn.MaxPool2d(pooled, 2, ceil_mode=True)) if pooled else module
            )
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels, classes)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(inputs)))


class DenseLayer(nn.Module):
    """Batch norm, ReLU, 1 x 1, batch norm, ReLU, 3 x 3, appended to the input (DenseNet-B)."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            convolution(inputs, 4 * growth, 1),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([inputs, self.path(inputs)], 1)


class DenseNet(nn.Module):
    """DenseNet-121 (Huang et al. 2017, table 1, growth 32); `blocks` are layers and transitions."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        growth, channels, counts = 32, 64, (6, 12, 24, 16)
        self.stem = nn.Sequential(convolution(3, channels, 7, stride=2), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        for stage, count in enumerate(counts):
            for _ in range(count):
                blocks.append(DenseLayer(channels, growth))
                channels += growth
            if stage + 1 < len(counts):
                blocks.append(_transition(channels))
                channels //= 2
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(channels, classes),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(inputs)))


def _transition(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels // 2, 1, bias=False),
        nn.AvgPool2d(2),
    )


class Fire(nn.Module):
    """A squeezing 1 x 1 convolution, then 1 x 1 and 3 x 3 ones (Iandola et al. 2016, figure 1)."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, inputs: Tensor) -> Tensor:
        squeezed = torch.relu(self.squeeze(inputs))
        branches = (self.expand1x1(squeezed), self.expand3x3(squeezed))
        return torch.cat([torch.relu(branch) for branch in branches], 1)


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1 (Iandola et al. 2016, table 1, with the authors' later stem and poolings).

    It has no batch norms, no dropout here, and a ReLU behind every convolution.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2), nn.ReLU()]
        channels = 64
        for stage in (((16, 64),) * 2, ((32, 128),) * 2, ((48, 192),) * 2 + ((64, 256),) * 2):
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
            for squeezed, expanded in stage:
                layers.append(Fire(channels, squeezed, expanded))
                channels = 2 * expanded
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Conv2d(channels, classes, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.classifier(self.features(inputs))
