from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.memory.operators.loss import (
    fuse_losses,
    linear_cross_entropy,
    linear_cross_entropy_in_chunks,
)
from tests.memory.operators.conformance import Step, check

VOCABULARY, WIDTH = 37, 8


class Language(nn.Module):
    """An embedding, a scale, and a head over the vocabulary; tied if it has no bias."""

    def __init__(self, bias: bool = False, dtype: torch.dtype = torch.float32, **loss: Any) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, dtype=dtype)
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=dtype))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=bias, dtype=dtype)
        if not bias:
            self.head.weight = self.embedding.weight
        if "weight" in loss:
            self.register_buffer("classes", loss.pop("weight"))
        self.loss = loss

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(self.embedding(tokens) * self.scale)
        weights = dict(self.named_buffers()).get("classes")
        return functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), weight=weights, **self.loss
        )


def sample(batch: int = 3, length: int = 7, ignored: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(6)
    tokens, targets = torch.randint(VOCABULARY, (2, batch, length)).unbind()
    targets.view(-1)[:ignored] = -100
    return tokens, targets


def fused(module: torch.fx.GraphModule) -> None:
    assert fuse_losses(module.graph) == 1


def check_loss(model: nn.Module, *inputs: Tensor, rounding: float = 1e-5) -> set[str]:
    """Compare the fused loss with the plain one, bit by bit, and variants with it."""
    plain, step = Step(model, *inputs), Step(model, *inputs, rewrite=fused)
    for found, expected in zip(step.expected, plain.expected, strict=True):
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    return set(check(model, *inputs, rewrite=fused, rounding=rounding))


@pytest.mark.parametrize("bias", [False, True])
def test_chunks_give_the_gradients(bias: bool) -> None:
    names = check_loss(Language(bias), *sample())
    assert names == {
        f"{way} in {count} chunks".strip() for way in ("", "with gradients") for count in (4, 16)
    } | (names & {"in place of the first", "in place of the second"})


def test_one_gradient_alone() -> None:
    """A call with one result returned a tuple of it, which is no operand of the next operator."""
    for wanted in ("embedding.weight", "head.weight", "head.bias"):
        model = Language(bias=True)
        for name, each in model.named_parameters():
            each.requires_grad_(name == wanted)
        assert {"in 4 chunks", "with gradients in 4 chunks"} <= check_loss(model, *sample())


def test_options_of_the_loss() -> None:
    weights = torch.linspace(0.5, 2.0, VOCABULARY)
    choices: tuple[dict[str, Any], ...] = (
        {"reduction": "sum"},
        {"weight": weights},
        {"ignore_index": 3},
    )
    for options in choices:
        check_loss(Language(**options), *sample(ignored=0 if "ignore_index" in options else 5))
    check_loss(Language(), *sample(ignored=21))  # no row counts: NaN
    assert "in 16 chunks" not in check_loss(Language(), *sample(1, 5))


def test_types() -> None:
    check_loss(Language(dtype=torch.float64), *sample(), rounding=1e-12)
    check_loss(Language(dtype=torch.bfloat16), *sample(), rounding=0.05)


class Autocast(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(*args)


def test_autocast() -> None:
    check_loss(Autocast(Language(True)), *sample(), rounding=0.05)


class WithLogits(Language):
    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
        logits = self.head(self.embedding(tokens))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


def test_losses_that_do_not_fit_stay() -> None:
    for model in (WithLogits(), Language(label_smoothing=0.1), Language(reduction="none")):
        counts: list[int] = []
        Step(model, *sample(), rewrite=lambda module, c=counts: c.append(fuse_losses(module.graph)))
        assert counts == [0]


def test_peak_memory_is_divided() -> None:
    class Peak(torch.utils._python_dispatch.TorchDispatchMode):  # pyright: ignore
        largest = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            made = func(*args, **(kwargs or {}))
            if isinstance(made, Tensor):
                self.largest = max(self.largest, made.untyped_storage().nbytes())
            return made

    step = Step(Language(), *sample(8, 16), rewrite=fused)
    (node,) = step.graph.find_nodes(op="call_function", target=linear_cross_entropy)
    hidden, weight_t = torch.randn(128, 2), torch.randn(2, 400)
    target = torch.zeros(128, dtype=torch.int64)
    operands: Any = (hidden, weight_t, None, target, None, node.args[0][-1])
    for run, most in (
        (lambda: linear_cross_entropy(operands), 128 * 400 * 4),
        (lambda: linear_cross_entropy_in_chunks(operands, 16), 8 * 400 * 4),
    ):
        with Peak() as peak:
            run()
        assert peak.largest == most
