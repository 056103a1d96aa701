"""Networks of the benchmark of memory, from the descriptions in the papers that introduced them.

Every one is a plain `torch.nn.Module` with random weights. Those that are a chain have their
middle in `blocks`, a `torch.nn.Sequential`: the units that checkpointing recomputes.
"""

from benchmarks.memory.networks.branches import DenseNet, GoogLeNet, SqueezeNet
from benchmarks.memory.networks.chains import VGG16, MobileNetV2, ResNet50
from benchmarks.memory.networks.transformers import GPT, VisionTransformer
from benchmarks.memory.networks.unets import UNet, UNet3D

__all__ = [
    "GPT",
    "DenseNet",
    "GoogLeNet",
    "MobileNetV2",
    "ResNet50",
    "SqueezeNet",
    "UNet",
    "UNet3D",
    "VGG16",
    "VisionTransformer",
]
