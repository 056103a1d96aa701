"""Shapes of ResNet-50's parameters: 161 tensors, 25,557,032 elements (He et al., 2016)."""

Shape = tuple[int, ...]


def resnet50_shapes() -> list[Shape]:
    """Return the shapes of ResNet-50's parameters (1,000 classes) in the order of the model."""
    shapes: list[Shape] = [*_convolution(3, 64, 7)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            shapes += _convolution(channels, width, 1)
            shapes += _convolution(width, width, 3)
            shapes += _convolution(width, 4 * width, 1)
            if block == 0:
                shapes += _convolution(channels, 4 * width, 1)
            channels = 4 * width
    return [*shapes, (1000, channels), (1000,)]


def _convolution(inputs: int, outputs: int, size: int) -> tuple[Shape, Shape, Shape]:
    """Return a convolution's weight, and its batch norm's weight and bias."""
    return (outputs, inputs, size, size), (outputs,), (outputs,)
