"""Gradients that are added while the backward pass runs equal those that autograd adds."""

import weakref
from copy import deepcopy
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from headrace.memory import CaptureError, fit
from headrace.memory.measure.accumulate import accumulating
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.arguments import WithLoss
from headrace.memory.measure.capture import capture
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.implementations import with_implementations
from headrace.memory.measure.timing import measured_graph
from headrace.memory.plan.baselines import keep_schedule
from headrace.memory.plan.verify import verify
from headrace.memory.run.step import scheduled_step
from headrace.memory.schedule import plain_schedule
from tests.memory.graphs import random_schedule
from tests.memory.models import CASES, SquareLoss, TiedTransformer
from tests.memory.simulate import simulate_step
from tests.memory.training import state_of

CPU = torch.device("cpu")


def captured_step(model: nn.Module, inputs: tuple[Tensor, ...], *, tied: bool = True) -> Capture:
    return accumulating(with_implementations(capture(model, inputs)), tied=tied)


def gradients_after(run: Any, model: nn.Module, steps: int = 3) -> list[Tensor | None]:
    """Return the gradients that some backward passes add up to."""
    for step in range(steps):
        torch.manual_seed(step)
        run().square().sum().backward()
    return [each.grad for each in model.parameters()]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_accumulated_gradients_are_eagers(case: str) -> None:
    torch.manual_seed(7)
    model, inputs = CASES[case]()
    captured = captured_step(model, inputs, tied=False)
    assert captured.accumulated
    graph = captured.graph
    for schedule in (plain_schedule(graph), random_schedule(graph, Random(1), 8)):
        verify(graph, schedule)
        own, eager = deepcopy(model), deepcopy(model)
        step = scheduled_step(captured, schedule)
        found = gradients_after(partial(step, *state_of(own), *inputs), own)
        expected = gradients_after(partial(eager, *inputs), eager)
        for one, other in zip(found, expected, strict=True):
            assert one is not None
            assert other is not None
            assert one.stride() == other.stride()
            assert torch.equal(one, other)


def test_two_models_that_share_a_step_get_the_gradients_of_their_own() -> None:
    """A backward pass added those of the model that was called last."""
    model, inputs = CASES["perceptron"]()
    captured = captured_step(model, inputs)
    step = scheduled_step(captured, plain_schedule(captured.graph))
    copies = [deepcopy(model) for _ in range(2)]
    losses = [step(*state_of(own), *inputs).square().sum() for own in copies]
    losses[0].backward()
    model(*inputs).square().sum().backward()
    for own, expected in zip(copies[0].parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own.grad, expected.grad)
    assert all(own.grad is None for own in copies[1].parameters())


def test_gradients_through_outputs_that_are_views_of_many_views() -> None:
    """They were lost: an output's step was looked for behind at most four views."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.inner(x)
            for _ in range(3):
                y = y.unsqueeze(0).squeeze(0)
            return y, y.t()

    model, x = Views(), torch.randn(4, 3)
    captured = captured_step(model, (x,))
    step = scheduled_step(captured, plain_schedule(captured.graph))
    step(*state_of(model), x)[0].sum().backward()
    expected = torch.autograd.grad(model(x)[0].sum(), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient)


def test_a_step_that_returns_the_output_of_another_model() -> None:
    """Gradients of that one's parameters were added to those of the model that was called last."""

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.inner(x).tanh(), x

    first, x = Beside(), torch.randn(4, 3, requires_grad=True)
    second = deepcopy(first)
    captured = captured_step(first, (x,))
    step = scheduled_step(captured, plain_schedule(captured.graph))
    sum(step(*state_of(second), step(*state_of(first), x)[0])).sum().backward()  # pyright: ignore
    parameters = [*first.parameters(), *second.parameters()]
    expected = torch.autograd.grad(sum(second(first(x)[0])).sum(), parameters)  # pyright: ignore
    for parameter, gradient in zip(parameters, expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient)


def test_only_gradients_that_are_asked_for_are_added() -> None:
    """Those of an input alone changed all parameters' gradients, too."""
    model, (x,) = CASES["perceptron"]()
    x = x.clone().requires_grad_()
    captured = captured_step(model, (x,))
    step = scheduled_step(captured, plain_schedule(captured.graph))
    (gradient,) = torch.autograd.grad(step(*state_of(model), x).square().sum(), x)
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    torch.testing.assert_close(gradient, expected)
    assert all(parameter.grad is None for parameter in model.parameters())
    first, *others = model.parameters()
    step(*state_of(model), x).square().sum().backward(inputs=[first])
    assert first.grad is not None
    assert all(parameter.grad is None for parameter in others)


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_of_tied_parameters(tied: bool) -> None:
    torch.manual_seed(7)
    model = TiedTransformer()
    inputs = (torch.randint(20, (2, 6)),)
    captured = captured_step(model, inputs, tied=tied)
    eager = deepcopy(model)
    step = scheduled_step(captured, plain_schedule(captured.graph))
    found = gradients_after(partial(step, *state_of(model), *inputs), model)
    expected = gradients_after(partial(eager, *inputs), eager)
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        assert other is not None
        if tied:
            torch.testing.assert_close(one, other)
        else:
            assert torch.equal(one, other)


class Sum(nn.Module):
    """A model two of whose gradients are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return (self.a + self.b) * x


def test_parameters_do_not_share_a_gradient() -> None:
    model, x = Sum(), torch.randn(5)
    captured = captured_step(model, (x,))
    step = scheduled_step(captured, plain_schedule(captured.graph))
    step(*state_of(model), x).sum().backward()
    assert model.a.grad is not None
    assert model.b.grad is not None
    model.a.grad.zero_()
    assert torch.equal(model.b.grad, x)


def test_the_measured_peak_has_no_second_gradients() -> None:
    torch.manual_seed(7)
    layers = [each for _ in range(6) for each in (nn.Linear(256, 256), nn.Tanh())]
    model = WithLoss(nn.Sequential(*layers), SquareLoss())
    inputs = (torch.randn(8, 256), torch.zeros(()))
    captured = captured_step(model, inputs)
    graph = measured_graph(captured, CPU)
    parameters = sum(each.nbytes for each in model.parameters())
    for schedule in (plain_schedule(graph), keep_schedule(graph, ())):
        step = scheduled_step(captured, schedule)

        def train(step: Any = step) -> None:
            step(*state_of(model), *inputs).backward()

        train()
        found = allocations_of(train, CPU).peak_bytes
        predicted = simulate_step(graph, schedule).peak_bytes - graph.resident_bytes
        assert 0.97 * predicted - 2048 <= found <= predicted
        assert found < 0.5 * parameters


def test_inputs_are_not_held_after_the_step() -> None:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    fitted = fit(model, x, "1MiB", accumulates=True, cache=False)
    held = weakref.ref(x)
    fitted(x).sum().backward()
    del x
    assert held() is None


def test_hooks_of_parameters() -> None:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    fitted = fit(model, x, "1MiB", accumulates=True, cache=False)
    seen: list[Tensor] = []

    def note(parameter: Tensor) -> None:
        assert parameter.grad is not None
        seen.append(parameter.grad.clone())

    model.weight.register_post_accumulate_grad_hook(note)
    for count in (1, 2):
        fitted(x).sum().backward()
        assert model.weight.grad is not None
        assert len(seen) == count
        assert torch.equal(seen[-1], model.weight.grad)
    hook = model.weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(CaptureError, match="parameter 'weight' has a hook on its gradient"):
        fitted(x)
    hook.remove()
    fitted(x).sum().backward()
    assert len(seen) == 3


def test_parameters_that_are_computed_are_refused() -> None:
    """Their gradients were added to what was computed, and the tensors behind it got none."""
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    fitted = fit(model, x, "1MiB", accumulates=True, cache=False)
    doubled = {name: 2 * parameter for name, parameter in model.named_parameters()}
    with pytest.raises(CaptureError, match="'weight' is computed .* fit without accumulates"):
        functional_call(fitted, doubled, (x,))
    functional_call(fitted, dict(model.named_parameters()), (x,)).sum().backward()
    assert model.weight.grad is not None


def test_a_loss_that_is_not_finite_reaches_the_scaler() -> None:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    fitted = fit(model, x, "1MiB", accumulates=True, cache=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = model.weight.detach().clone()
    scaler.scale(fitted(x).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before)
    assert scaler.get_scale() == 2.0


def test_ddp_averages_what_is_accumulated(tmp_path: Path) -> None:
    torch.manual_seed(7)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(3, 4)
    eager = deepcopy(model)
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        fitted = fit(model, x, "1MiB", accumulates=True, cache=False)
        parallel = DistributedDataParallel(fitted)
        with parallel.no_sync():
            parallel(x).square().sum().backward()
        parallel(x).square().sum().backward()
        expected = gradients_after(partial(eager, x), eager, 2)
        for one, other in zip(model.parameters(), expected, strict=True):
            assert torch.equal(one.grad, other)  # pyright: ignore
    finally:
        dist.destroy_process_group()


def test_exact_steps_leave_the_sum_of_tied_gradients_to_autograd() -> None:
    captured = with_implementations(capture(TiedTransformer(), (torch.randint(20, (2, 6)),)))

    def positions(*, tied: bool) -> set[int]:
        found = accumulating(captured, tied=tied).accumulated.values()
        return {each for every in found for each in every}

    assert len(positions(tied=True) - positions(tied=False)) == 2
