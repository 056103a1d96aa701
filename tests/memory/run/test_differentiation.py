"""Second derivatives, transforms of torch.func and forward mode around a fitted module."""

import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacrev, vmap
from torch.utils.checkpoint import checkpoint

from headrace.memory.adapt.fit import fitted_module
from headrace.memory.errors import CaptureError
from headrace.memory.measure.captured import Capture
from headrace.memory.plan.baselines import keep_schedule
from headrace.memory.schedule import Schedule, plain_schedule


def sparing(captured: Capture) -> dict[int, Schedule]:
    return {1: keep_schedule(captured.graph, ())}


class Formed(nn.Module):
    """A layer whose result is returned in some form."""

    def __init__(self, form: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.form = nn.Linear(4, 4), form

    def forward(self, x: torch.Tensor) -> Any:
        return self.form(torch.tanh(self.linear(x)))


FORMS: Mapping[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = {
    "tensor": (lambda y: y, lambda y: y),
    "view": (lambda y: y[1:].t(), lambda y: y),
    "tuple": (lambda y: (y, y.sum()), lambda y: y[0]),
    "loss": (lambda y: {"loss": y.sum(), "logits": y}, lambda y: y["loss"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_graph_of_gradients_is_refused_with_what_to_do(form: str) -> None:
    """A gradient penalty ended in an error of torch.compile, which the user does not call."""
    build, part = FORMS[form]
    model, x = Formed(build), torch.randn(3, 4)
    fitted = fitted_module(model, sparing)
    loss = part(fitted(x)).square().sum()
    with pytest.raises(CaptureError, match=r"create_graph=True\): .* with the module that was fi"):
        torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
    part(fitted(x)).square().sum().backward()
    assert model.linear.weight.grad is not None


def test_a_penalty_with_the_module_beside_a_fitted_step() -> None:
    """What the error says to do: gradients add up as with the module alone."""
    model, x = Formed(lambda y: y), torch.randn(3, 4)
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing)
    for called, penalized in ((fitted, model), (eager, eager)):
        inputs = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(penalized(inputs).sum(), inputs, create_graph=True)
        (called(x).square().sum() + gradient.square().sum()).backward()
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


class Passing(nn.Module):
    """A layer that returns its input, too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, self.linear(x)


def test_an_upstream_module_keeps_its_second_derivatives() -> None:
    first, x = nn.Linear(4, 4), torch.randn(3, 4)
    fitted = fitted_module(Passing(), sparing)
    hidden, _ = fitted(torch.tanh(first(x)))
    (gradient,) = torch.autograd.grad(hidden.sum(), first.weight, create_graph=True)
    gradient.square().sum().backward()
    assert first.weight.grad is not None


def _dual(module: nn.Module, x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(module(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def _of_parameters(module: nn.Module, x: torch.Tensor) -> Any:
    parameters = {name: each.detach() for name, each in module.named_parameters()}
    per_sample = vmap(
        grad(lambda own, row: functional_call(module, own, (row,)).sum()), in_dims=(None, 0)
    )
    return per_sample(parameters, x)["linear.weight"]


TRANSFORMS: Mapping[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "per-sample gradients": _of_parameters,
    "vmap": lambda module, x: vmap(module)(x),
    "jacrev": lambda module, x: jacrev(module)(x),
    "forward mode": _dual,
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # torch's own
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_run_the_module_with_a_warning(transform: str) -> None:
    """They ended in errors of torch on `setup_context`, or on `requires_grad_`."""
    model, x = Formed(lambda y: y), torch.randn(3, 4)
    fitted = fitted_module(model, sparing)
    fitted(x).sum().backward()
    expected = TRANSFORMS[transform](model, x)
    with pytest.warns(UserWarning, match=r"transform of torch\.func .* module that was fitted"):
        result = TRANSFORMS[transform](fitted, x)
    torch.testing.assert_close(result, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TRANSFORMS[transform](fitted, x)


def test_where_nothing_requires_gradients_the_module_runs() -> None:
    """A module whose parameters were frozen after `fit`, such as a teacher, raised an error."""
    model, x = Formed(lambda y: y), torch.randn(3, 4)
    fitted = fitted_module(model, sparing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(x).sum().backward()
        fitted.requires_grad_(False)
        assert torch.equal(fitted(x), model(x))
        assert not fitted(x).requires_grad
        fitted.requires_grad_(True)
        fitted(x).sum().backward()


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 4), reentrant

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.second, torch.tanh(self.first(x)), use_reentrant=self.reentrant)


def test_checkpoints_inside_of_the_module() -> None:
    """Reentrant ones were refused with advice on `.grad()` and the sample's shape."""
    x = torch.randn(3, 4)
    with pytest.raises(CaptureError, match="use_reentrant=True; remove the checkpoint, as the sch"):
        fitted_module(Checkpointed(reentrant=True), sparing).prepare(x)
    model = Checkpointed(reentrant=False)
    eager = deepcopy(model)
    for module in (fitted_module(model, sparing), eager):
        module(x).square().sum().backward()
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_around_the_module(reentrant: bool) -> None:
    model, x = Formed(lambda y: y), torch.randn(3, 4, requires_grad=True)
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing)
    fitted.prepare(x)
    for module in (fitted, eager):
        output: Any = checkpoint(module, x, use_reentrant=reentrant)
        output.square().sum().backward()
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_batched_gradients_are_refused_with_what_to_do() -> None:
    """The error was torch's, of the storage of a tensor that has none."""
    model, x = Formed(lambda y: y), torch.randn(3, 4)
    fitted = fitted_module(model, sparing)
    weight, directions = model.linear.weight, torch.eye(4)
    y = fitted(x).sum(0)
    with pytest.raises(CaptureError, match=r"\(is_grads_batched=True, .* compute one at a time"):
        torch.autograd.grad(y, weight, directions, is_grads_batched=True)
    (expected,) = torch.autograd.grad(model(x).sum(0), weight, directions, is_grads_batched=True)
    y = fitted(x).sum(0)
    singly = [torch.autograd.grad(y, weight, row, retain_graph=True)[0] for row in directions]
    torch.testing.assert_close(torch.stack(singly), expected)


class Scored(nn.Module):
    """A loss of logits that are returned beside it, as models of language do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 6, bias=False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(x)
        return {"loss": torch.tanh(2 * logits).square().mean(), "logits": logits}


def test_outputs_that_a_backward_pass_reads_are_not_written() -> None:
    """Gradients were of what the user had written: torch does not see that in such a product."""
    model, x = Scored(), torch.randn(2, 3, 4)
    fitted = fitted_module(model, sparing)  # which computes the loss again from the logits
    outputs = fitted(x)
    with torch.no_grad():
        outputs["logits"].zero_()
    with pytest.raises(CaptureError, match=r"written into .* \(output\.clone\(\)\)"):
        outputs["loss"].backward()


def test_outputs_that_no_backward_pass_reads_may_be_written() -> None:
    """Torch refused it, as a view of a function of headrace's."""
    model, x = Scored(), torch.randn(2, 3, 4)
    eager = deepcopy(model)
    fitted = fitted_module(model, lambda captured: {1: plain_schedule(captured.graph)})
    for module in (fitted, eager):
        outputs = module(x)
        outputs["logits"].mul_(2)
        outputs["loss"].backward()
    assert torch.equal(model.head.weight.grad, eager.head.weight.grad)
