"""Models of the user that `fit` changes, where it succeeds and wherever it fails."""

import random
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Report
from headrace.memory import BudgetError, CaptureError, fit, fit_blocks
from headrace.memory.adapt.fit import fitted_module
from headrace.memory.cli.measure import ProfileOptions, profile_of
from headrace.memory.exactness import Exactness
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.step import optimizer_bytes
from headrace.memory.schedule import Schedule
from tests.memory.failures import INJECTIONS, MOST, FailureError, Noting, Shared
from tests.memory.states import differences, state_of_objects

SECTION = "harm"
_QUICK_POINTS = 3
_ERRORS: tuple[type[BaseException], ...] = (FailureError, KeyboardInterrupt)
_BATCH, _WIDTH = 4, 6


class Hooked(Shared):
    """A model that is refused for a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_hook(lambda *_: None)


class Unregistered(nn.Module):
    """A layer with objects that are no parameters, buffers or modules."""

    def __init__(self) -> None:
        super().__init__()
        self.tied = nn.Linear(_WIDTH, _WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.shape, self.names, self.scale = [_WIDTH], {"kind": "tanh"}, 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scaled output."""
        return self.dropout(torch.tanh(self.tied(x))) * self.scale


_MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "aliased, tied, BatchNorm, dropout": Shared,
    "hooks": Hooked,
    "unregistered attributes": Unregistered,
    "forward changes a list and a generator": Noting,
}


def bars() -> dict[str, str]:
    """Return the bar."""
    return {"harm-cases": "<= 0"}


def _no_plan(_captured: Capture) -> dict[int, Schedule]:
    raise FailureError


_OPTIONS = ProfileOptions(exactness=Exactness.ROUNDED, conditions={}, device=None, cache=False)


class Job:
    """A model that has trained a step, so that it has gradients, and its optimizer a state."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        self.model, self.x = make(), torch.randn(_BATCH, _WIDTH)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.unused_optimizer = torch.optim.Adam(self.model.parameters())
        self.model(self.x).sum().backward()
        self.optimizer.step()

    @property
    def attempts(self) -> dict[str, Callable[[], Any]]:
        """What is tried, by the part of `fit` or of the command line."""
        model, x, optimizer = self.model, self.x, self.optimizer
        return {
            "fit": partial(fit, model, x, "10MiB", cache=False, optimizer=optimizer),
            "a budget too small": partial(fit, model, x, 1, cache=False),
            "fit_blocks, a budget too small": partial(
                fit_blocks, model, [model.tied], x, 1, cache=False, optimizer=optimizer
            ),
            "the solver": partial(fitted_module(model, _no_plan).prepare, x),
            "memory measure": partial(profile_of, (model, x, None, optimizer), "harm", _OPTIONS),
            "the optimizer's first step": partial(optimizer_bytes, self.unused_optimizer),
        }

    def state(self) -> dict[str, Any]:
        """What the job holds."""
        return state_of_objects(self.model, self.optimizer, self.unused_optimizer, self.x)


_INJECTED = (
    "fit",
    "fit_blocks, a budget too small",
    "memory measure",
    "the optimizer's first step",
)
_REFUSALS = (FailureError, KeyboardInterrupt, BudgetError, CaptureError)


def _is_harmed(
    make: Callable[[], nn.Module], part: str, injection: Callable[[], Any] | None
) -> bool:
    """Return whether a model is changed behind one attempt."""
    job = Job(make)
    attempt, before = job.attempts[part], job.state()
    with suppress(*_REFUSALS), nullcontext() if injection is None else injection():
        attempt()
    return differences(before, job.state()) != []


def _points(make: Callable[[], nn.Module], part: str, kind: str) -> int:
    """Return at how many points of an attempt a failure can be injected."""
    attempt = Job(make).attempts[part]
    with INJECTIONS[kind](MOST, FailureError) as injection, suppress(*_REFUSALS):
        attempt()
    return MOST - injection.left


def measure(report: Report, *, quick: bool) -> None:
    """Try every part on every model, with a failure at each point."""
    sampler, harmed_cases = random.Random(0), 0
    for name, make in _MODELS.items():
        for part in Job(make).attempts:
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
