"""Chains of blocks: ResNet-50, VGG-16 and MobileNet-V2."""

from torch import Tensor, nn


def convolution(
    inputs: int,
    outputs: int,
    size: int,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Return a convolution without bias, its batch norm, and an activation (None: without)."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([] if activation is None else [activation()]))


class Bottleneck(nn.Module):
    """Residual block of 1 x 1, 3 x 3 and 1 x 1 convolutions (He et al. 2016, figure 5, right).

    The stride is that of the 3 x 3 convolution, as in today's ResNet-50.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.path = nn.Sequential(
            convolution(inputs, width, 1),
            convolution(width, width, 3, stride=stride),
            convolution(width, outputs, 1, activation=None),
        )
        self.shortcut = (
            nn.Identity()
            if inputs == outputs
            else convolution(inputs, outputs, 1, stride=stride, activation=None)
        )
        self.activation = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.activation(self.path(inputs) + self.shortcut(inputs))


class ResNet50(nn.Module):
    """ResNet of 50 layers (He et al. 2016, table 1); `blocks` are its 16 bottlenecks."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 64, 7, stride=2), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        channels = 64
        for stage, count in enumerate((3, 4, 6, 3)):
            width = 64 << stage
            for block in range(count):
                blocks.append(Bottleneck(channels, width, 2 if stage and not block else 1))
                channels = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(inputs)))


class VGG16(nn.Module):
    """VGG's configuration D (Simonyan and Zisserman 2015, table 1), with dropout in its head.

    `blocks` are the five groups of convolutions, each with the pooling that ends it.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        channels = 3
        blocks: list[nn.Module] = []
        for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            layers: list[nn.Module] = []
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            blocks.append(nn.Sequential(*layers, nn.MaxPool2d(2)))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            *(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout()),
            *(nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()),
            nn.Linear(4096, classes),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.blocks(inputs))


class InvertedResidual(nn.Module):
    """Expansion, depthwise 3 x 3 convolution and linear projection (Sandler et al. 2018, 3.3)."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        expand = [convolution(inputs, hidden, 1, activation=nn.ReLU6)] if expansion > 1 else []
        self.path = nn.Sequential(
            *expand,
            convolution(hidden, hidden, 3, stride=stride, groups=hidden, activation=nn.ReLU6),
            convolution(hidden, outputs, 1, activation=None),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.path(inputs)
        return inputs + outputs if self.residual else outputs


class MobileNetV2(nn.Module):
    """MobileNet-V2 (Sandler et al. 2018, table 2); `blocks` are its 17 inverted residuals."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = convolution(3, 32, 3, stride=2, activation=nn.ReLU6)
        channels = 32
        blocks: list[nn.Module] = []
        for expansion, width, count, stride in (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for block in range(count):
                blocks.append(
                    InvertedResidual(
                        channels, width, stride=1 if block else stride, expansion=expansion
                    )
                )
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            convolution(channels, 1280, 1, activation=nn.ReLU6),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(1280, classes),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(inputs)))
