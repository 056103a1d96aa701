import pytest
import torch
from torch import Tensor, nn

from headrace.memory.operators.variant import BLOCK_BYTES
from tests.memory.operators.conformance import check

POOLINGS = (
    nn.MaxPool2d(2),
    nn.MaxPool2d(3, 2, 1),
    nn.MaxPool2d((3, 2), (2, 1), (1, 0)),
    nn.MaxPool2d(3, 1, 1, 2),
    nn.MaxPool2d(3, 2, ceil_mode=True),
)


class Pooled(nn.Module):
    """A max pooling between two products."""

    def __init__(self, pooling: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5], dtype=dtype))
        self.pooling = pooling

    def forward(self, x: Tensor) -> Tensor:
        return self.pooling(x * self.weight) * self.weight


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers with ties, infinities and NaN."""
    torch.manual_seed(2)
    x = torch.randn(shape).mul(2).round().to(dtype)
    x.view(-1)[3:6] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    return x.requires_grad_()


@pytest.mark.parametrize("window", POOLINGS, ids=str)
def test_pooling_is_exact_from_indices_and_bytes(window: nn.Module) -> None:
    for x in (sample(3, 2, 9, 8), sample(2, 7, 9), sample(1, 1, 11, 7)):
        assert set(check(Pooled(window), x)) >= {"with bytes", "from bytes", "from indices"}


@pytest.mark.parametrize(
    "window",
    [nn.MaxPool3d(2), nn.MaxPool3d((3, 2, 4), (2, 1, 3), (1, 0, 2)), nn.MaxPool3d(3, 1, 1, 2)],
    ids=str,
)
def test_pooling_of_volumes(window: nn.Module) -> None:
    for x in (sample(2, 3, 7, 9, 8), sample(2, 7, 9, 6)):
        assert set(check(Pooled(window), x)) >= {"with bytes", "from bytes", "from indices"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types(dtype: torch.dtype) -> None:
    assert check(Pooled(POOLINGS[1], dtype), sample(2, 3, 8, 8, dtype=dtype))["from bytes"]


def test_layouts_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLOCK_BYTES, "cpu", 1)
    base = sample(3, 4, 9, 8).detach()
    for x in (base.to(memory_format=torch.channels_last), base[:, :, 1:], base.transpose(2, 3)):
        assert check(Pooled(POOLINGS[1]), x.requires_grad_())["from bytes"]
    check(Pooled(POOLINGS[0]), torch.zeros(0, 2, 4, 4, requires_grad=True))


def test_windows_of_more_than_256_positions_keep_their_indices() -> None:
    found = check(Pooled(nn.MaxPool2d(17)), sample(1, 1, 17, 34))
    assert "from indices" in found
    assert "from bytes" not in found


class WithIndices(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return nn.functional.max_pool2d(x, 2, return_indices=True)  # pyright: ignore


def test_indices_that_the_model_returns_are_not_dropped() -> None:
    assert set(check(WithIndices(), sample(1, 1, 4, 4))) == {"from indices"}
