import pytest
import torch
from torch import nn

from headrace.memory.errors import ImplementationError
from headrace.memory.exactness import Exactness
from tests.memory.operators.conformance import check


def batch_norm(channels: int = 4, *, kind: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    torch.manual_seed(8)
    norm = kind(channels)
    nn.init.uniform_(norm.weight, 0.3, 2.0)  # pyright: ignore
    norm.weight.data[::2] *= -1  # pyright: ignore
    nn.init.normal_(norm.bias)  # pyright: ignore
    return norm


def test_batch_norm_from_output() -> None:
    for shape in ((6, 4, 5, 3), (1, 4, 9, 9), (8, 4, 1, 1)):
        x = (100 * torch.randn(shape) + 7).requires_grad_()
        found = check(
            nn.Sequential(batch_norm(), nn.ReLU()),
            x,
            exactness=Exactness.CONDITIONAL,
            rounding=1e-4,
        )
        assert found["from output"] == 1
    x = torch.randn(6, 4, 5, 3)
    dense = x.to(memory_format=torch.channels_last).requires_grad_()
    found = check(batch_norm(), dense, exactness=Exactness.CONDITIONAL, rounding=1e-4)
    assert found["from output"] == 1
    for view in (x.transpose(2, 3), x[::2]):
        assert not check(batch_norm(), view.requires_grad_(), exactness=Exactness.CONDITIONAL)
    check(
        batch_norm(kind=nn.BatchNorm1d),
        torch.randn(7, 4, requires_grad=True),
        exactness=Exactness.CONDITIONAL,
    )
    check(nn.BatchNorm2d(4, affine=False), torch.randn(6, 4, 5, 3, requires_grad=True))


def test_types() -> None:
    double = torch.randn(6, 4, 5, 3, dtype=torch.float64, requires_grad=True)
    check(batch_norm().double(), double, exactness=Exactness.CONDITIONAL, rounding=1e-12)
    half = torch.randn(6, 4, 5, 3, dtype=torch.bfloat16, requires_grad=True)
    check(batch_norm(), half, rounding=1e-2)


def test_a_weight_near_zero_is_refused() -> None:
    norm = batch_norm()
    norm.weight.data[1] = 0.0  # pyright: ignore
    with pytest.raises(ImplementationError, match="plan without conditional"):
        check(norm, torch.randn(6, 4, 5, 3, requires_grad=True), exactness=Exactness.CONDITIONAL)
    check(norm, torch.randn(6, 4, 5, 3, requires_grad=True))
