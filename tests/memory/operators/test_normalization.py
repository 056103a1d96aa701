import pytest
import torch
from torch import nn
from torch._decomp.decompositions import (
    _fused_rms_norm_backward,  # pyright: ignore[reportPrivateUsage]
)

from headrace.memory.errors import ImplementationError
from headrace.memory.exactness import Exactness
from headrace.memory.operators import normalization
from headrace.memory.operators.variant import BLOCK_BYTES
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


@pytest.mark.parametrize("block_bytes", [1, 1 << 22])
def test_batch_norm_in_place_of_the_gradient(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BLOCK_BYTES, "cpu", block_bytes)
    name = "in place of the gradient"
    for shape in ((6, 4, 5, 3), (1, 4, 9, 9), (8, 4, 1, 1)):
        x = (100 * torch.randn(shape) + 700).requires_grad_()
        for norm in (batch_norm(), nn.BatchNorm2d(4, affine=False)):
            found = check(nn.Sequential(norm, nn.ReLU()), x, rounding=1e-4)
            assert found[name] == 1
    dense = torch.randn(6, 4, 5, 3).to(memory_format=torch.channels_last).requires_grad_()
    assert check(nn.Sequential(batch_norm(), nn.ReLU()), dense)[name] == 1
    flat = nn.Sequential(batch_norm(kind=nn.BatchNorm1d), nn.ReLU())
    assert check(flat, torch.randn(7, 4, requires_grad=True))[name] == 1
    found = check(nn.Sequential(batch_norm(), nn.ReLU()), x, exactness=Exactness.CONDITIONAL)
    assert found[f"from output, {name}"] == 1


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(6), nn.LayerNorm(6), nn.RMSNorm(6)], ids=str)
def test_one_gradient_alone(norm: nn.Module) -> None:
    """A call with one result returned a tuple of it, which is no operand of the next operator."""
    model = nn.Sequential(nn.Linear(6, 6), norm, nn.ReLU(), nn.Linear(6, 2))
    for wanted in (model[0], norm):
        model.requires_grad_(False)
        next(wanted.parameters()).requires_grad_()
        check(model, torch.randn(8, 6), exactness=Exactness.CONDITIONAL, rounding=1e-4)


def test_only_gradients_of_training_in_the_step_are_overwritten() -> None:
    x = torch.randn(6, 4, 5, 3, requires_grad=True)
    assert not check(batch_norm(), x)
    found = check(nn.Sequential(batch_norm().eval(), nn.ReLU()), x)
    assert "in place" in found
    assert "in place of the gradient" not in found


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


class Around(nn.Module):
    """A normalization between two products, so that its input and output are no results."""

    def __init__(self, norm: nn.Module, width: int = 6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * self.norm(x * self.weight)


def weighted(norm: nn.Module) -> nn.Module:
    torch.manual_seed(8)
    for each in norm.parameters():
        nn.init.uniform_(each, 0.3, 2.0)
        each.data.view(-1)[::2] *= -1
    return norm


NORMS = (
    nn.LayerNorm(6),
    nn.LayerNorm(6, bias=False),
    nn.LayerNorm([4, 6]),
    nn.LayerNorm(6, elementwise_affine=False),
    nn.RMSNorm(6),
    nn.RMSNorm(6, elementwise_affine=False),
)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_other_norms_from_output(norm: nn.Module) -> None:
    torch.manual_seed(3)
    x = (100 * torch.randn(2, 4, 6) + 7).requires_grad_()
    model = Around(weighted(norm))
    found = check(model, x, exactness=Exactness.CONDITIONAL, rounding=1e-4)
    expected = 1 if isinstance(norm, nn.LayerNorm) else 3 if list(norm.parameters()) else 2
    assert found["from output"] == expected
    without = not list(norm.parameters())  # then there is no condition
    assert (check(model, x, rounding=1e-4)["from output"] > 0) is without
    double = x.detach().double().requires_grad_()
    check(model.double(), double, exactness=Exactness.CONDITIONAL, rounding=1e-12)
    model.float()


def test_a_bias_without_a_weight() -> None:
    """The output stood for the normalized input, with its bias: gradients were wrong."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.linspace(-1, 1, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.layer_norm(x, (6,), None, self.bias)

    check(Around(Shifted()), torch.randn(3, 6, requires_grad=True), rounding=1e-4)


def test_a_wider_weight_does_not_widen_gradients() -> None:
    """Products in bfloat16 became float32, which the next product refused."""

    class Rms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight

    x = torch.randn(3, 6, dtype=torch.bfloat16, requires_grad=True)
    check(Rms(), x, exactness=Exactness.CONDITIONAL, rounding=0.05)


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.RMSNorm(6)], ids=str)
def test_a_weight_near_zero_of_other_norms_is_refused(norm: nn.Module) -> None:
    norm.weight.data[1] = 1e-5  # pyright: ignore
    x = torch.randn(3, 6, requires_grad=True)
    with pytest.raises(ImplementationError, match="plan without conditional"):
        check(Around(norm), x, exactness=Exactness.CONDITIONAL)
    check(Around(norm), x)


def test_the_fused_kernel_of_gpus_by_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATen has the backward kernel for GPUs alone; its formula stands for it here."""
    x, weight = torch.randn(5, 6, requires_grad=True), weighted(nn.RMSNorm(6)).weight
    grad = torch.randn(5, 6)
    out = torch.nn.functional.rms_norm(x, (6,), weight)  # pyright: ignore
    expected = torch.autograd.grad(out, (x, weight), grad)  # pyright: ignore
    rstd = (x.square().mean(1, keepdim=True) + torch.finfo(x.dtype).eps).rsqrt().detach()

    class Kernel:
        default = staticmethod(_fused_rms_norm_backward)

    monkeypatch.setattr(normalization.aten, "_fused_rms_norm_backward", Kernel, raising=False)
    found = normalization.rms_norm_backward_from_output(
        grad,
        out.detach(),
        [6],
        rstd,
        weight,  # pyright: ignore
        [True, True],
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
