"""A small model under DDP, and its training, for the checks of the hook."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headrace.compression import CompressionError

BUCKET_MB = 0.02  # several buckets
RATE = 0.05


class Net(nn.Module):
    """Matrices, biases, a norm, and a branch that only some steps take."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(40, 60)
        self.norm = nn.LayerNorm(60)
        self.middle = nn.Linear(60, 60)
        self.branch = nn.Linear(60, 60)
        self.last = nn.Linear(60, 30)

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        x = x.to(self.first.weight.dtype)
        x = self.middle(torch.tanh(self.norm(self.first(x))))
        return self.last(torch.tanh(x + self.branch(x) if branch else x))


def data(step: int, rank: int) -> Tensor:
    return torch.randn(8, 40, generator=torch.Generator().manual_seed(1000 * step + rank))


def parallel(**options: Any) -> DistributedDataParallel:
    options.setdefault("bucket_cap_mb", BUCKET_MB)
    return DistributedDataParallel(Net(), **options)


def backward(model: nn.Module, step: int, rank: int, **how: Any) -> None:
    model.zero_grad()
    model(data(step, rank), **how).square().mean().backward()


def descend(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=RATE)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def digest(*tensors: Tensor) -> str:
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()[:16]


def refuses(call: Callable[[], object], text: str) -> None:
    try:
        call()
    except CompressionError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
