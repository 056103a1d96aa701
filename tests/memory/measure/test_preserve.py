"""Models behind captures that end well, fail, or are interrupted: they are as before."""

# pyright: reportPrivateUsage=false

import copy
import operator
import random
import types
from collections import OrderedDict, deque
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from headrace.memory import BudgetError, CaptureError, fit, fit_blocks
from headrace.memory.adapt.fit import fitted_module
from headrace.memory.measure.capture import capture
from headrace.memory.measure.preserve import preserved
from headrace.memory.measure.step import optimizer_bytes
from headrace.memory.measure.trace import _export
from headrace.memory.schedule import plain_schedule
from tests.memory.failures import INJECTIONS, MOST, FailureError, Noting, Shared
from tests.memory.models import CASES
from tests.memory.states import differences, state_of_objects
from tests.memory.training import assert_trains_alike
from tests.tiers import Sample

POINTS = 150
"""Largest number of points of failure of a test, evenly spaced: a capture takes half a second."""


@pytest.mark.parametrize("error", [FailureError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", INJECTIONS)
def test_a_capture_that_fails_anywhere_leaves_the_model(
    kind: str, error: type[BaseException], sample: Sample
) -> None:
    """A module with two names was left with traced tensors in place of its parameters.

    Some failures, Ctrl-C too, arrived as a KeyError of torch's notes of modules.
    """
    model, x = Shared(), torch.randn(4, 6)
    before = state_of_objects(model)
    with INJECTIONS[kind](MOST, error) as counted:
        capture(model, (x,))
    assert differences(before, state_of_objects(model)) == []
    points = MOST - counted.left
    assert points > 20
    for count in sample.of(range(0, points, 1 + points // POINTS), 4):
        with pytest.raises((error, CaptureError)), INJECTIONS[kind](count, error):
            capture(model, (x,))
        changes = differences(before, state_of_objects(model))
        assert changes == [], f"failure at {count} of {points}"


def test_a_trace_harms_without_the_guard() -> None:
    """What the guard is for: `forward` runs within the trace, and changes what it changes."""
    model, x = Noting(), torch.randn(4, 6)
    before = state_of_objects(model)
    with pytest.raises(CaptureError, match="random numbers of Python"):
        capture(model, (x,))
    assert differences(before, state_of_objects(model)) == []
    with pytest.raises(CaptureError, match="random numbers of Python"):
        _export(model, (x,), {}, goes_on=True)
    changes = differences(before, state_of_objects(model))
    assert {"generator of Python", "0:Noting.history length", "0:Noting.calls"} <= {*changes}


def test_a_module_with_two_names_trains() -> None:
    """Its parameters were replaced by traced tensors: neither fitted steps nor eager's ran."""
    torch.manual_seed(0)
    model, x = Shared(), torch.randn(32, 6)
    eager = copy.deepcopy(model)
    before = state_of_objects(model)
    fitted = fit(model, x, "1MiB", exact=True, cache=False)
    assert differences(before, state_of_objects(model)) == []
    # three parts of a gradient are added in another order
    assert_trains_alike(partial(fitted, x), model, partial(eager, x), eager, rounded=True)
    accumulating = fit(model, x, "1MiB", accumulates=True, cache=False)
    for module in (accumulating, eager):
        for _ in range(2):
            torch.manual_seed(1)
            module(x).square().sum().backward()
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad, b.grad)


def test_blocks_that_fail_leave_the_model() -> None:
    """A block's own `forward`, as libraries set, was deleted; one of two names was replaced."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].forward = partial(type(model[0]).forward, model[0])  # pyright: ignore
    model.add_module("again", model[1])
    x = torch.randn(2, 4)
    before = state_of_objects(model)
    with pytest.raises(CaptureError, match="is called 2 times"):
        fit_blocks(model, [model[0], model[1]], x, "1MiB", cache=False)
    assert differences(before, state_of_objects(model)) == []
    with pytest.raises(BudgetError):
        fit_blocks(model, [model[0], model[2]], x, 1, cache=False)
    assert differences(before, state_of_objects(model)) == []


def test_an_optimizer_with_a_scheduler_and_hooks_is_left() -> None:
    """The scheduler's step is the original's: fake tensors became its state, and hooks ran."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    called: list[str] = []
    optimizer.register_step_post_hook(lambda *_: called.append("hook"))
    model(torch.randn(2, 4)).sum().backward()
    assert optimizer_bytes(optimizer) == optimizer_bytes(torch.optim.Adam(model.parameters()))
    assert not called
    assert not optimizer.state
    optimizer.step()
    scheduler.step()
    assert all(type(each) is torch.Tensor for each in optimizer.state[model.weight].values())


class Changing(nn.Module):
    """Mutable parts of all kinds, which a call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.listed, self.named, self.several = [1], {"a": 1}, {1}
        self.ordered, self.queue = OrderedDict(b=[2]), deque([1], maxlen=3)
        self.array, self.scalar = np.zeros(2), torch.tensor(1.0)
        self.config = types.SimpleNamespace(layers=2, inner=types.SimpleNamespace(flag=True))

    def change(self) -> None:
        self.listed.append(2)
        self.named.clear()
        self.several.add(2)
        self.ordered["b"].append(3)
        self.ordered["c"] = []
        self.queue.append(2)
        self.array += 1
        self.scalar.add_(1)
        self.config.layers, self.config.inner.flag = 3, False
        self.added = 1
        self.eval()
        self.register_forward_hook(lambda *_: None)
        self.register_buffer("buffer", torch.ones(1))
        random.random()
        np.random.random()
        torch.rand(1)


def test_all_that_a_call_changes_is_set_back() -> None:
    module = Changing()
    parts = [module.listed, module.ordered, module.queue, module.config.inner]
    before = state_of_objects(module), copy.deepcopy({**vars(module), "_forward_hooks": {}})
    with pytest.raises(KeyboardInterrupt), preserved(module):  # noqa: PT012
        module.change()
        raise KeyboardInterrupt
    assert differences(before[0], state_of_objects(module)) == []
    assert repr(vars(module)) == repr({**before[1], "_forward_hooks": module._forward_hooks})
    assert not module._forward_hooks
    assert module.scalar.item() == 1
    now = [module.listed, module.ordered, module.queue, module.config.inner]
    assert all(map(operator.is_, now, parts))


class Expanded(nn.Module):
    """A model that counts in a number, of which it has an expanded view, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("counts", self.count.expand(2, 4))
        self.calls: list[int] = []

    def change(self) -> None:
        self.count.add_(1)
        self.calls.append(1)


def test_an_expanded_buffer_is_set_back() -> None:
    """Torch refused to write into it, and all that came after it stayed changed."""
    module = Expanded()
    with preserved(module):
        module.change()
        assert module.counts.tolist() == [[1.0] * 4] * 2
    assert module.counts.tolist() == [[0.0] * 4] * 2
    assert module.count.item() == 0
    assert module.calls == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_fitting_leaves_models_and_generators(case: str) -> None:
    model, inputs = CASES[case]()
    before = state_of_objects(model)
    fitted_module(model, lambda step: {1: plain_schedule(step.graph)}).prepare(*inputs)
    assert differences(before, state_of_objects(model)) == []
