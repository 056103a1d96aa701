"""Trained networks of this claim's jobs: three architectures, computed or on an emulated device.

The emulated device (`benchmarks.instruments.models`) sleeps for times that were recorded here, all
multiplied so that forward and backward pass take a given time together: that of a device that is
slower, or of a larger batch. Parameters are a twentieth of today's networks, and so are buckets.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.instruments.models import WORKLOADS, Chain, Emulated, Workload, record

COMPUTE_S = 0.2
BUCKET_CAP_MB = 1
REAL, EMULATED = "real", "emulated"


def _transformer() -> list[nn.Module]:
    layers: list[nn.Module] = [
        nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(4)
    ]
    return [*layers, nn.Linear(128, 64)]


NETWORKS = {
    "convolutional": WORKLOADS["conv"],
    "perceptron": WORKLOADS["few-huge"],
    "transformer": Workload(name="transformer", stages=_transformer, shape=(16, 128), batch=8),
}

Training = tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]
"""A model, the same on all ranks, and the loss of this rank's batch."""


def training(name: str, compute: str, seconds: float = COMPUTE_S) -> Training:
    """Return a network's model and loss; all ranks of the job call it.

    Parameters
    ----------
    seconds : of an emulated device's forward and backward pass.
    """
    workload = NETWORKS[name]
    torch.manual_seed(0)
    inputs = workload.inputs(dist.get_rank())
    if compute == REAL:
        return Chain(workload.stages()), lambda model: model(inputs)
    times = _recorded(workload, seconds)
    torch.manual_seed(0)
    bias = 0.001 * (dist.get_rank() + 1)
    return Emulated(workload.stages(), times, bias), lambda model: model(inputs)


def _recorded(workload: Workload, seconds: float) -> list[tuple[float, float]]:
    """Return rank 0's times of forward and backward passes, multiplied."""
    box: list[Any] = [record(workload) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    factor = seconds / sum(map(sum, box[0]))
    return [(forward * factor, backward * factor) for forward, backward in box[0]]
