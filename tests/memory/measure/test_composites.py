"""Composite functions in a capture: operators that eager execution runs are not decomposed."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.nn import functional

from headrace.memory.measure.capture import capture
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.composites import OPERATORS
from headrace.memory.run.step import scheduled_step
from headrace.memory.schedule import plain_schedule
from tests.memory.training import state_of

DECOMPOSED = {
    "broadcast_tensors": "views alone",
    "cudnn_batch_norm": "batch normalization has variants of its own",
    "dropout": "native_dropout, which stores its mask in bytes",
    "empty": "no computation",
    "gru": "recurrent layers are traced by `recurrent`",
    "istft": "the operators that eager execution runs",
    "lstm": "recurrent layers are traced by `recurrent`",
    "matmul": "the operators that eager execution runs",
    "miopen_batch_norm": "batch normalization has variants of its own",
    "native_batch_norm": "its running statistics have to be functional",
    "one_hot": "the operators that eager execution runs",
    "pad_sequence": "the operators that eager execution runs",
    "rnn_relu": "recurrent layers are traced by `recurrent`",
    "rnn_tanh": "recurrent layers are traced by `recurrent`",
    "stft": "the operators that eager execution runs",
    "tensor_split": "views alone",
    "to_dense": "sparse tensors are refused",
    "unsafe_chunk": "views alone",
}
"""Operators that torch decomposes in a trace, and that a capture leaves to it -> the reason."""


def decompositions() -> set[str]:
    """Names of ATen operators for which a trace has a decomposition in Python."""
    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
    names: set[str] = set()
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace != "aten" or not hasattr(torch.ops.aten, name):
            continue
        overload = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default", None)
        if isinstance(overload, OpOverload) and any(key in overload.py_kernels for key in keys):
            names.add(name)
    return names


def test_every_decomposition_of_torch_is_avoided_or_has_a_reason() -> None:
    """A small U-Net's step took 1.757 of eager's: bilinear sampling was 240 operators."""
    traced = {name.removesuffix("_forward") for name in decompositions()}
    assert "upsample_bilinear2d" in traced
    assert traced - OPERATORS == set(DECOMPOSED)
    assert traced - set(DECOMPOSED) == OPERATORS


class Applied(nn.Module):
    """A function of a layer's output."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(features, 1))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.scale * x)


def interpolation(**options: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return partial(functional.interpolate, scale_factor=2.0, **options)


FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "upsample_linear1d": (interpolation(mode="linear"), (2, 3, 5)),
    "upsample_trilinear3d": (interpolation(mode="trilinear"), (1, 2, 2, 3, 3)),
    "upsample_bilinear2d": (
        lambda x: torch.ops.aten.upsample_bilinear2d.vec(x, None, True, [1.5, 2.0]),
        (1, 2, 4, 3),
    ),
    "upsample_bicubic2d": (interpolation(mode="bicubic", align_corners=True), (1, 2, 4, 3)),
    "_upsample_bilinear2d_aa": (
        partial(functional.interpolate, size=2, mode="bilinear", antialias=True),
        (1, 2, 5, 5),
    ),
    "upsample_nearest1d": (nn.Upsample(scale_factor=3), (2, 3, 5)),
    "upsample_nearest2d": (interpolation(), (1, 2, 4, 3)),
    "upsample_nearest3d": (interpolation(), (1, 2, 2, 3, 3)),
    "_upsample_nearest_exact2d": (interpolation(mode="nearest-exact"), (1, 2, 4, 3)),
    "hardshrink": (lambda x: x.hardshrink(0.3), (4, 6)),
    "softshrink": (nn.Softshrink(0.3), (4, 6)),
    "multi_margin_loss": (
        lambda x: functional.multi_margin_loss(x, torch.ones(4, dtype=torch.long)),
        (4, 6),
    ),
    "multilabel_margin_loss_forward": (
        lambda x: functional.multilabel_margin_loss(x, torch.ones(4, 6, dtype=torch.long)),
        (4, 6),
    ),
}


def targets(captured: Capture) -> list[str]:
    return [
        node.target._schema.name.removeprefix("aten::")
        for node in captured.fx.nodes
        if isinstance(node.target, OpOverload)
    ]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_composite_function_is_one_operator_of_each_pass(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    function, shape = FUNCTIONS[name]
    model = Applied(function, 1).to(dtype)
    x = torch.randn(shape, dtype=dtype)
    captured = capture(model, (x,))
    names = targets(captured)
    assert names.count(name) == 1
    assert names.count(f"{name.removesuffix('_forward')}_backward") == 1
    assert len(captured.graph.operators) <= 9
    scheduled_step(captured, plain_schedule(captured.graph))(*state_of(model), x).sum().backward()
    gradient, model.scale.grad = model.scale.grad, None
    model(x).sum().backward()
    assert gradient is not None
    assert model.scale.grad is not None
    assert torch.equal(gradient, model.scale.grad)
