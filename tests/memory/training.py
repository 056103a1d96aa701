"""Training steps of two modules in lockstep, compared bit by bit."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def assert_trains_alike(
    run: Callable[[], Any],
    model: nn.Module,
    eager_run: Callable[[], Any],
    eager: nn.Module,
    steps: int = 3,
    *,
    rounded: bool = False,
) -> None:
    """Train two modules, each by a call that returns its outputs, and compare them.

    Outputs, gradients, parameters, buffers and the random generator have to be equal after each
    step, to the last bit, or if they may be `rounded` nearly so.
    """
    pairs = [(run, model), (eager_run, eager)]
    optimizers = [torch.optim.SGD(each.parameters(), 0.01, momentum=0.9) for _, each in pairs]
    for step in range(steps):
        states: list[Any] = []
        for (call, module), optimizer in zip(pairs, optimizers, strict=True):
            torch.manual_seed(step)
            outputs = call()
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            torch.stack([each.square().mean() for each in outputs]).sum().backward()
            optimizer.step()
            gradients = [each.grad for each in module.parameters()]
            optimizer.zero_grad()
            state = [*module.parameters(), *module.buffers(), torch.get_rng_state()]
            states.append([*outputs, *gradients, *(each.detach().clone() for each in state)])
        assert len(states[0]) == len(states[1])
        same = _close if rounded else _equal
        assert all(map(same, *states)), f"step {step} differs"


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def _close(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.allclose(a, b, rtol=1e-4, atol=1e-7)


def state_of(module: nn.Module) -> list[torch.Tensor]:
    """Return what a captured step takes: all parameters and buffers, as often as they are named."""
    return [
        *dict(module.named_parameters(remove_duplicate=False)).values(),
        *dict(module.named_buffers(remove_duplicate=False)).values(),
    ]
