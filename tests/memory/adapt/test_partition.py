"""Compiled steps store what a schedule says."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from headrace.memory import BudgetError, partitioner
from tests.memory.models import Solving

WIDTH = 32
ROWS = 512


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.BatchNorm1d(4 * WIDTH),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(4 * WIDTH, WIDTH),
        ]
    return nn.Sequential(*layers)


def trained(model: nn.Module, called: Any) -> tuple[int, list[torch.Tensor]]:
    """Train one step; return the bytes stored for the backward pass, and gradients and buffers."""
    stored: dict[int, int] = {}

    def pack(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
        return value

    torch.manual_seed(1)
    x = torch.randn(ROWS, WIDTH)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        found = called(x)
    found.square().mean().backward()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return sum(stored.values()), [*gradients, *model.buffers()]


def compiled(model: nn.Module, budget: int | str, *, dynamic: bool = False) -> Any:
    options: Any = {"custom_partitioner_fn": partitioner(budget)}
    return torch.compile(model, dynamic=dynamic, options=options)


@pytest.mark.slow
def test_a_compiled_step_stores_less_and_computes_the_same() -> None:
    torch.compiler.reset()
    model, equal = network(), network()
    weights = sum(each.nbytes for each in model.parameters())
    budget = 2 * weights + 11 * ROWS * 2 * WIDTH * 4
    less, found = trained(model, compiled(model, budget))
    more, expected = trained(equal, torch.compile(equal, dynamic=False))
    assert less < 0.7 * more, (less, more)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_an_impossible_budget_and_dynamic_shapes_are_errors() -> None:
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    x = torch.randn(ROWS, WIDTH)
    with pytest.raises(BudgetError, match="budget is 'lots'"):
        partitioner("lots")
    with pytest.raises(Exception, match="no schedule fits a budget of 1 KB"):
        compiled(deepcopy(model), 1000)(x)
    with pytest.raises(Exception, match="shapes are dynamic"):
        compiled(deepcopy(model), "1GiB", dynamic=True)(x)


def test_a_checked_factorization_is_an_error_with_a_remedy() -> None:
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"torch\.linalg use solve_ex"):
        compiled(Solving(), "1GiB")(torch.eye(3))
