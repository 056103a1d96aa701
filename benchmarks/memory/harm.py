"""Models of the user that `fit` changes, where it succeeds and wherever it fails."""

import random
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Report
from headrace.memory import BudgetError, CaptureError, fit
from headrace.memory.cli.measure import StepOptions, profile_of
from headrace.memory.exactness import Exactness
from headrace.memory.measure.capture import Capture
from headrace.memory.measure.step import optimizer_bytes
from headrace.memory.run.fitted import FittedModule
from headrace.memory.schedule import Schedule
from tests.memory.failures import INJECTIONS, MOST, FailureError, Shared, state_of_objects

SECTION = "harm"
_QUICK_POINTS = 6
_ERRORS: tuple[type[BaseException], ...] = (FailureError, KeyboardInterrupt)


class Hooked(Shared):
    """A model that is refused for a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_hook(lambda *_: None)


class Unregistered(nn.Module):
    """A layer with objects that are no parameters, buffers or modules, and a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.dropout = nn.Dropout(0.1)
        self.shape, self.names, self.scale = [6], {"kind": "tanh"}, 2.0
        self.linear.weight.grad = torch.ones(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scaled output."""
        return self.dropout(torch.tanh(self.linear(x))) * self.scale


_MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "aliased, tied, BatchNorm, dropout": Shared,
    "hooks": Hooked,
    "unregistered attributes, gradient": Unregistered,
}


def bars() -> dict[str, str]:
    """Return the bar."""
    return {"harm-cases": "<= 0"}


def _no_plan(_captured: Capture) -> dict[int, Schedule]:
    raise FailureError


def _attempts(model: nn.Module, x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Return what is tried on a model, by the part of `fit` or of the command line."""
    optimizer = torch.optim.Adam(model.parameters())
    return {
        "fit": partial(fit, model, x, "10MiB", cache=False, optimizer=optimizer),
        "a budget too small": partial(fit, model, x, 1, cache=False),
        "the solver": partial(FittedModule(model, _no_plan).prepare, x),
        "memory measure": partial(profile_of, (model, x, None, optimizer), "harm", _OPTIONS),
        "the optimizer's first step": partial(optimizer_bytes, optimizer),
    }


_OPTIONS = StepOptions(exactness=Exactness.ROUNDED, conditions={}, device=None, cache=False)
_INJECTED = ("fit", "memory measure", "the optimizer's first step")
_REFUSALS = (FailureError, KeyboardInterrupt, BudgetError, CaptureError)


def _state(model: nn.Module) -> Hashable:
    gradients = tuple(
        None if each.grad is None else each.grad.numpy().tobytes() for each in model.parameters()
    )
    return state_of_objects(model), gradients


def _is_harmed(
    make: Callable[[], nn.Module], part: str, injection: Callable[[], Any] | None
) -> bool:
    """Return whether a model is changed behind one attempt."""
    model, x = make(), torch.randn(4, 6)
    attempt = _attempts(model, x)[part]
    before = _state(model)
    with suppress(*_REFUSALS), nullcontext() if injection is None else injection():
        attempt()
    return _state(model) != before


def _points(make: Callable[[], nn.Module], part: str, kind: str) -> int:
    """Return at how many points of an attempt a failure can be injected."""
    attempt = _attempts(make(), torch.randn(4, 6))[part]
    with INJECTIONS[kind](MOST, FailureError) as injection, suppress(*_REFUSALS):
        attempt()
    return MOST - injection.left


def measure(report: Report, *, quick: bool) -> None:
    """Try every part on every model, with a failure at each point."""
    sampler, harmed_cases = random.Random(0), 0
    for name, make in _MODELS.items():
        for part in _attempts(make(), torch.randn(4, 6)):
            cases: list[Callable[[], Any] | None] = [None]
            for kind in INJECTIONS if part in _INJECTED else ():
                points = range(_points(make, part, kind))
                counts = (
                    sampler.sample(points, min(_QUICK_POINTS, len(points))) if quick else points
                )
                for error in _ERRORS:
                    cases += [partial(INJECTIONS[kind], count, error) for count in counts]
            harmed = sum(_is_harmed(make, part, injection) for injection in cases)
            harmed_cases += harmed
            report.row("models behind fit", model=name, part=part, cases=len(cases), harmed=harmed)
    report.bar("harm-cases", harmed_cases)
