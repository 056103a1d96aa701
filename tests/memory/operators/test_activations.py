from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

from headrace.memory.operators import bits, variants
from tests.memory.operators.conformance import check, joint_graph

SHAPES = ((3, 5), (1,), (0, 4), (2, 3, 5, 7), (8, 8))


class Scaled(nn.Module):
    """An activation between two products, so that neither its input nor its output is a result."""

    def __init__(self, activation: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5], dtype=dtype))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x * self.weight) * self.weight


def sample(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, nan: float = float("nan")
) -> Tensor:
    """Return numbers with zeros of both signs, thresholds, NaN and infinities among them."""
    torch.manual_seed(1)
    x = (4 * torch.randn(shape)).to(dtype)
    special = [0.0, -0.0, 4.0, float("inf"), -float("inf"), 1e-40, nan]
    for index, value in enumerate(special[: x.numel() // 2]):
        x.view(-1)[index] = value
    return x.requires_grad_()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_relu_is_exact_from_input_signs_and_in_place(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        found = check(Scaled(nn.ReLU(), dtype), sample(shape, dtype), poison=True)
        for name in ("in place of the first", "in place of the second"):
            del found[name]  # the sum of the two products' gradients
        assert found == Counter(
            ["with signs", "in place", "in place with signs"]
            + ["from input", "from input in place", "from signs", "from signs in place"]
            + ["in place"]
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "activation",
    [nn.ReLU6(), nn.LeakyReLU(0.1), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Hardtanh(-2.0, 4.0)],
    ids=str,
)
def test_other_activations_are_exact(activation: nn.Module) -> None:
    nan = 2.0 if isinstance(activation, nn.Hardtanh) else float("nan")  # its kernels disagree
    for shape in SHAPES:
        found = check(Scaled(activation), sample(shape, nan=nan), poison=True)
        assert found["in place"]
        if isinstance(activation, nn.Hardtanh):
            assert found["from signs"]
            assert found["from output in place"]


def test_limits_that_bfloat16_rounds() -> None:
    """Gradients of elements at the limit, or beyond it, were others: outputs are rounded limits."""
    x = torch.tensor([-0.3, -0.298828125, 0.5, 0.69921875, 0.7, 3.0])
    for dtype, count in ((torch.float32, 1), (torch.bfloat16, 0)):
        model = Scaled(nn.Hardtanh(-0.3, 0.7), dtype)
        model.weight.data.fill_(1.0)
        assert check(model, x.to(dtype, copy=True).requires_grad_())["from output"] == count


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", [nn.Softmax, nn.LogSoftmax])
def test_gradients_of_softmax_are_in_place_along_rows(
    kind: type[nn.Softmax | nn.LogSoftmax], dtype: torch.dtype
) -> None:
    for shape in ((3, 5), (0, 4), (2, 3, 1), (8, 1000), (3, 5000)):
        x = sample(shape, dtype)
        assert check(Scaled(kind(dim=-1), dtype), x, poison=True)["in place"], shape
    assert not check(Scaled(kind(dim=0), dtype), sample((3, 5), dtype))["in place"]


def test_layouts_that_are_not_contiguous() -> None:
    for activation in (nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.1)):
        nan = 2.0 if isinstance(activation, nn.Hardtanh) else float("nan")
        base = sample((4, 6, 5, 3), nan=nan).detach()
        for x in (
            base.to(memory_format=torch.channels_last),
            base.transpose(1, 3),
            base[:, ::2],
            base[:, :1].expand(4, 6, 5, 3),
        ):
            assert check(Scaled(activation), x.requires_grad_(), poison=True)


def test_an_input_of_the_step_and_a_tangent_are_not_overwritten() -> None:
    graph = joint_graph(nn.ReLU(), torch.randn(3, requires_grad=True)).graph
    names = {each.name for offered in variants(graph).values() for each in offered}
    assert names == {"with signs", "from signs", "from input"}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        y, z = x * self.weight, x / self.weight
        return ((y + z) + y.t()) + self.weight


def test_sums_in_place_of_either_term_that_shares_no_memory_with_the_other() -> None:
    found = check(Residual(), torch.randn(4, 4, requires_grad=True))
    assert found["in place of the first"] >= 3
    assert found["in place of the second"] >= 1
    graph = joint_graph(Residual(), torch.randn(4, 4)).graph
    for node, offered in variants(graph).items():
        for each in offered:
            if isinstance(each.overwrites, Node):
                assert each.overwrites.meta["val"].shape == node.meta["val"].shape


def test_bits_cross_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bits.BLOCK, "cpu", 16)
    for count in (0, 1, 7, 8, 9, 16, 17, 47, 64):
        flags = torch.rand(count) < 0.5
        packed = bits.pack_flags(lambda x, out: out.copy_(x), flags)
        assert packed.numel() == (count + 7) // 8
        whole = bits.unpack(packed, slice(0, count))
        assert torch.equal(whole, flags)
        for block in bits.aligned_slices(count, flags.device):
            assert torch.equal(bits.unpack(packed, block), flags[block])
    check(Scaled(nn.ReLU()), sample((3, 37)), poison=True)
