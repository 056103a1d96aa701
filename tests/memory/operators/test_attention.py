"""Attention by its kernel, and with its probabilities stored."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from headrace.memory import fit
from headrace.memory.operators.products import fuse_attentions
from tests.memory.operators.conformance import Step, check


class Heads(nn.Module):
    """Self-attention of two heads, with what `scaled_dot_product_attention` takes."""

    def __init__(self, width: int = 8, mask: Tensor | None = None, **options: object) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(width, width)
        self.options = options
        if mask is not None:
            self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.inner(x).view(batch, tokens, 3, 2, -1).permute(2, 0, 3, 1, 4)
        mask = dict(self.named_buffers()).get("mask")
        mixed = functional.scaled_dot_product_attention(
            *split.unbind(0),
            attn_mask=mask,
            **self.options,  # pyright: ignore
        )
        return self.outer(mixed.transpose(1, 2).reshape(batch, tokens, width))


def sample(dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(6)
    return torch.randn(3, 7, 8, dtype=dtype, requires_grad=True)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "booleans": {"mask": torch.rand(7, 7, generator=torch.Generator().manual_seed(1)) < 0.7},
    "added": {"mask": torch.linspace(-2, 2, 49).view(7, 7)},
}


@pytest.mark.parametrize("case", CASES)
def test_probabilities_give_the_gradients(case: str) -> None:
    options = CASES[case]
    found = check(Heads(**options), sample())
    assert found["with probabilities"] == found["from probabilities"] == 1


def test_types() -> None:
    check(Heads(is_causal=True).double(), sample(torch.float64), rounding=1e-12)
    check(Heads(is_causal=True).bfloat16(), sample(torch.bfloat16), rounding=0.05)


def test_dropout_and_fewer_keys_stay_as_they_are() -> None:
    assert "with probabilities" not in check(Heads(dropout_p=0.1), sample())

    class Across(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(x, y, y)

    x, y = (torch.randn(2, 2, n, 4, requires_grad=True) for n in (5, 3))
    assert check(Across(), x, y)["from probabilities"] == 1


class Products(Heads):
    """The same, written as products and a softmax."""

    def __init__(self, kind: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.kind, self.dropout = kind, nn.Dropout(dropout)
        self.register_buffer("later", torch.ones(7, 7, dtype=torch.bool).triu(1))
        self.register_buffer("added", torch.linspace(-2, 2, 49).view(7, 7))
        self.register_buffer("heads", torch.linspace(-2, 2, 98).view(1, 2, 7, 7))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.inner(x).view(batch, tokens, 3, 2, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        if self.kind == "scaled first":
            query = query / 2
        if self.kind == "transposed":
            query, key, value = (
                each.transpose(-2, -1).contiguous().transpose(-2, -1)
                for each in (query, key, value)
            )
        scores = query @ key.transpose(-2, -1)
        if self.kind != "scaled first":
            scores = scores / 2 if self.kind == "filled" else scores * 0.5
        if self.kind == "filled":
            scores = scores.masked_fill(self.later, float("-inf"))
        elif self.kind in ("added", "heads"):
            scores = scores + getattr(self, self.kind)
        probabilities = self.dropout(scores.softmax(-1))
        mixed = probabilities @ value
        found = self.outer(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return (found, probabilities) if self.kind == "returned" else found  # pyright: ignore


def fused(count: int) -> Any:
    def rewrite(module: torch.fx.GraphModule) -> None:
        assert fuse_attentions(module.graph) == count

    return rewrite


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind", ["plain", "scaled first", "filled", "added", "heads", "transposed"]
)
def test_products_are_fused_to_the_bit_and_run_by_the_kernel(kind: str) -> None:
    model, x = Products(kind), sample()
    plain, step = Step(model, x), Step(model, x, rewrite=fused(1))
    for found, expected in zip(step.expected, plain.expected, strict=True):
        assert (found is None) == (expected is None)
        assert found is None or expected is None or torch.equal(found, expected)
    assert check(model, x, rewrite=fused(1))["by kernel"] == 2
    double = sample(torch.float64)
    assert check(model.double(), double, rewrite=fused(1), rounding=1e-12)["by kernel"] == 2


def test_the_math_of_torch_is_fused() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        found = check(Heads(is_causal=True), sample(), rewrite=fused(1))
    assert found["by kernel"] == 2


def test_a_step_needs_no_probabilities() -> None:
    tokens = 256
    model, x = Products("plain"), torch.randn(1, tokens, 8)
    probabilities = 2 * tokens * tokens * 4
    fitted = fit(deepcopy(model), x, probabilities, cache=False)
    (plan,) = fitted.plans
    assert plan.peak_bytes < probabilities
    found, expected = (
        torch.autograd.grad(each(x).square().sum(), list(each.parameters()))
        for each in (fitted, model)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


class OneHead(nn.Module):
    """Products and a softmax in three dimensions, with a mask from outside."""

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        torch.manual_seed(4)
        self.inner = nn.Linear(8, 24, bias=False)
        self.kind = kind

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        query, key, value = self.inner(x).chunk(3, -1)
        scores = query @ key.transpose(1, 2)
        if self.kind == "filled":
            scores = scores.masked_fill(mask, float("-inf"))
        elif self.kind == "mask first":
            scores = mask + scores
        elif self.kind == "masks of heads":
            scores = (scores.view(batch // 2, 2, tokens, tokens) + mask).view_as(scores)
        elif self.kind == "grouped rows":
            scores = scores.view(batch, tokens // 2, 2, tokens) + mask
        elif self.kind == "halves of rows":
            scores = scores.view(batch, tokens, 2, tokens // 2)
        else:
            scores = scores + mask
        return scores.softmax(-1).view(batch, tokens, tokens) @ value


@pytest.mark.parametrize(
    "mask",
    [torch.randn(4, 6, 6), torch.randn(4, 1, 6), torch.randn(6, 6).half(), torch.arange(-5, 1)],
    ids=["of rows", "of all rows", "half", "integers"],
)
def test_masks_of_products_in_three_dimensions(mask: Tensor) -> None:
    """The kernel takes four dimensions and the query's type: a capture with others was an error."""
    assert check(OneHead(), torch.randn(4, 6, 8), mask, rewrite=fused(1))["by kernel"] == 2
    filled = mask.expand(4, 6, 6) < -1
    found = check(OneHead("filled"), torch.randn(4, 6, 8), filled[..., :1, :], rewrite=fused(1))
    assert found["by kernel"] == 2


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("mask first", (6, 6)),
        ("masks of heads", (2, 1, 6, 6)),
        ("grouped rows", (4, 3, 1, 6)),
        ("halves of rows", ()),
    ],
)
def test_rows_that_are_not_the_products_stay(kind: str, shape: tuple[int, ...]) -> None:
    """The kernel went over whole rows, or refused the shapes."""
    check(OneHead(kind), torch.randn(4, 6, 8), torch.randn(shape), rewrite=fused(0))


def test_a_softmax_of_an_input_stays() -> None:
    """It was an error: an input is computed from nothing."""
    Step(nn.Softmax(-1), sample(), rewrite=fused(0))


def test_products_that_do_not_fit_stay() -> None:
    for model in (Products("plain", dropout=0.1), Products("returned"), Heads()):
        Step(model, sample(), rewrite=fused(0))
