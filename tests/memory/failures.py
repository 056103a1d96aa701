"""Models that are easy to harm, and failures inside of a trace."""

import random
import sys
import types
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Shared(nn.Module):
    """A layer under two names, a parameter under two, and a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = self.first
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.first.weight
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.3)
        self.history = [1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(torch.tanh(self.again(torch.tanh(self.first(x)))))
        return self.norm(self.tied(x))


class Noting(Shared):
    """A model whose `forward` changes what the model and others hold."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.history.append(random.random())
        return super().forward(x)


class FailureError(Exception):
    """Raised inside of a model's trace."""


class FailingMode(TorchDispatchMode):
    """Raises at an operator, by the number of those that ran before.

    Never at a query of a tensor's device: an error in that one ends the process within torch.
    """

    def __init__(self, count: int, error: type[BaseException]) -> None:
        super().__init__()
        self.left, self.error = count, error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.prim.device.default:
            self.left -= 1
            if self.left < 0:
                raise self.error
        return func(*args, **(kwargs or {}))


class FailingCalls:
    """Raises at a call of a Python function of capture's or torch's swapping, by number."""

    def __init__(self, count: int, error: type[BaseException]) -> None:
        self.left, self.error = count, error

    def __enter__(self) -> "FailingCalls":
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_raised: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: types.FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith(("capture.py", "stateless.py")):
            self.left -= 1
            if self.left < 0:
                sys.setprofile(None)
                raise self.error


INJECTIONS = {"operator": FailingMode, "call": FailingCalls}
MOST = 10**9
