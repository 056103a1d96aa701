"""Workloads: a network, its inputs and its loss, with the batches of the paper."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.memory.networks import (
    GPT,
    VGG16,
    DenseNet,
    GoogLeNet,
    MobileNetV2,
    ResNet50,
    UNet,
    UNet3D,
    VisionTransformer,
)
from benchmarks.memory.networks.libraries import bert, llama, mixtral
from benchmarks.memory.networks.transformers import VOCABULARY

Loss = Callable[[Tensor, Tensor], Tensor]
Sample = Callable[[int], tuple[Tensor, Tensor]]
"""Batch -> inputs and targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A network that is trained on random data.

    Attributes
    ----------
    network : makes the module, with random weights.
    sample : makes inputs and targets of a batch.
    batch : of the paper's tables where the network is one of theirs.
    loss : of outputs and targets.
    eager_gb, monet_gb : memory of PyTorch, and of MONeT at 10% overhead, in GB (Table 4.2); None
        where the paper has none.
    """

    name: str
    network: Callable[[], nn.Module]
    sample: Sample
    batch: int
    loss: Loss = functional.cross_entropy
    eager_gb: float | None = None
    monet_gb: float | None = None

    def make(self, batch: int | None = None, *, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
        """Return the network, inputs and targets; the same ones for the same seed.

        Parameters
        ----------
        batch : default: the workload's.
        """
        torch.manual_seed(seed)
        return self.network(), *self.sample(self.batch if batch is None else batch)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of all tokens; logits (batch, tokens, vocabulary)."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def pixels(*sides: int, channels: int = 3, classes: int = 1000) -> Sample:
    """Return samples of one class each."""
    return lambda batch: (
        torch.randn(batch, channels, *sides),
        torch.randint(classes, (batch,)),
    )


def masks(*sides: int, channels: int, classes: int) -> Sample:
    """Return samples with a class for every pixel."""
    return lambda batch: (
        torch.randn(batch, channels, *sides),
        torch.randint(classes, (batch, *sides)),
    )


def voxels(*sides: int) -> Sample:
    """Return volumes of one channel with a binary target for every voxel."""
    return lambda batch: (
        torch.randn(batch, 1, *sides),
        torch.randint(2, (batch, 1, *sides)).float(),
    )


def text(tokens: int, vocabulary: int = VOCABULARY) -> Sample:
    """Return sequences of tokens and the ones that follow them."""

    def sample(batch: int) -> tuple[Tensor, Tensor]:
        drawn = torch.randint(vocabulary, (batch, tokens + 1))
        return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()

    return sample


_SQUARE = pixels(224, 224)

PAPER = (
    Workload(
        name="resnet50", network=ResNet50, sample=_SQUARE, batch=184, eager_gb=15.1, monet_gb=5.7
    ),
    Workload(
        name="googlenet", network=GoogLeNet, sample=_SQUARE, batch=320, eager_gb=14.9, monet_gb=6.9
    ),
    Workload(
        name="unet",
        network=UNet,
        sample=masks(608, 416, channels=3, classes=2),
        batch=11,
        eager_gb=14.3,
        monet_gb=5.2,
    ),
    Workload(name="vgg16", network=VGG16, sample=_SQUARE, batch=176, eager_gb=14.1, monet_gb=5.5),
    Workload(
        name="mobilenet_v2",
        network=MobileNetV2,
        sample=_SQUARE,
        batch=256,
        eager_gb=14.5,
        monet_gb=4.8,
    ),
)
"""The paper's models (Table 4.2), with the batches of its comparison with Gist (Table 4.3); its
kinds of implementations (Figure A.1) have MobileNet-V2 with 272."""

MORE = (
    Workload(
        name="unet3d",
        network=UNet3D,
        sample=voxels(32, 64, 64),
        batch=22,
        loss=functional.binary_cross_entropy_with_logits,
    ),
    Workload(name="gpt12", network=GPT, sample=text(1024), batch=4, loss=token_loss),
    Workload(
        name="gpt48",
        network=lambda: GPT(48, width=1600),
        sample=text(1024),
        batch=4,
        loss=token_loss,
    ),
    Workload(name="densenet121", network=DenseNet, sample=_SQUARE, batch=64),
    Workload(name="vit_small", network=VisionTransformer, sample=_SQUARE, batch=64),
)
"""3D-UNet of A.3 (batch 22; the size of its volumes is not in the paper), GPT-2 of 12 and of 48
layers, and models that no issue and no paper of this project names."""

LIBRARIES = (
    Workload(
        name="transformers_llama",
        network=lambda: llama(32000, 12, 768),
        sample=text(1024, 32000),
        batch=4,
        loss=token_loss,
    ),
    Workload(
        name="transformers_bert",
        network=lambda: bert(30522, 12, 768),
        sample=text(512, 30522),
        batch=16,
        loss=token_loss,
    ),
    Workload(
        name="transformers_mixtral",
        network=lambda: mixtral(32000, 6, 768),
        sample=text(1024, 32000),
        batch=4,
        loss=token_loss,
    ),
)
"""Models of Hugging Face's transformers, of BERT's and GPT-2's size."""

WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in (*PAPER, *MORE)}

RESNET = Workload(
    name="resnet50-small",
    network=lambda: ResNet50(10),
    sample=pixels(128, 128, classes=10),
    batch=8,
)
"""ResNet-50 of 10 classes on 128 x 128: what the bars of measured memory and time are about."""
