"""Attributes of modules that change between steps, and in `forward`."""

import enum
import random
import warnings
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headrace.memory import CaptureError, fit
from headrace.memory.adapt.fit import fitted_module
from headrace.memory.measure.attributes import AttributeReader, differing_names
from headrace.memory.measure.captured import Capture
from headrace.memory.schedule import Schedule, plain_schedule
from tests.memory.training import assert_trains_alike

pytestmark = pytest.mark.sampled(12)


class Planner:
    """Plain schedules, and how many were asked for."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, captured: Capture) -> dict[int, Schedule]:
        self.count += 1
        return {1: plain_schedule(captured.graph)}


class Reading(nn.Module):
    """A linear layer, and a function of the module and the layer's output."""

    def __init__(
        self, read: Callable[[Any, torch.Tensor], torch.Tensor], **attributes: Any
    ) -> None:
        super().__init__()
        self.linear, self.read = nn.Linear(4, 4), read
        vars(self).update(attributes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(self, torch.tanh(self.linear(x)))


def reading(
    read: Callable[[Any, torch.Tensor], torch.Tensor], **attributes: Any
) -> Any:  # attributes of modules have no types
    return Reading(read, **attributes)


class Mode(enum.Enum):
    """A choice of what a module computes."""

    PLAIN = 1
    DOUBLE = 2


@dataclass
class Config:
    """A configuration."""

    scale: float = 1.0


class Slotted:
    """A configuration without a dictionary."""

    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.0


def set_scale(holder: Any) -> None:
    holder.scale = 3.0


CHANGES: dict[
    str, tuple[Any, Callable[[Any, torch.Tensor], torch.Tensor], Callable[[Any], None]]
] = {
    "number": (1.0, lambda m, x: x / m.value, lambda m: setattr(m, "value", 0.5)),
    "integer": (2, lambda m, x: x * m.value, lambda m: setattr(m, "value", 5)),
    "type": (
        2,
        lambda m, x: x * (2 if type(m.value) is int else 3),
        lambda m: setattr(m, "value", 2.0),
    ),
    "sign of 0": (
        0.0,
        lambda m, x: x * np.copysign(1, m.value),
        lambda m: setattr(m, "value", -0.0),
    ),
    "text": ("sin", lambda m, x: getattr(x, m.value)(), lambda m: setattr(m, "value", "cos")),
    "flag": (False, lambda m, x: x * 2 if m.value else x, lambda m: setattr(m, "value", True)),
    "None": (None, lambda m, x: x if m.value is None else x * 2, lambda m: setattr(m, "value", 0)),
    "enumeration": (
        *(Mode.PLAIN, lambda m, x: x * m.value.value),
        lambda m: setattr(m, "value", Mode.DOUBLE),
    ),
    "dtype": (
        *(torch.float32, lambda m, x: x.to(m.value)),
        lambda m: setattr(m, "value", torch.float64),
    ),
    "threshold": (9, lambda m, x: x * 2 if m.value > 10 else x, lambda m: setattr(m, "value", 11)),
    "list": ([1.0], lambda m, x: x * m.value[0], lambda m: m.value.__setitem__(0, 2.0)),
    "longer list": ([1.0], lambda m, x: x * len(m.value), lambda m: m.value.append(2.0)),
    "deque": (deque([1.0]), lambda m, x: x * sum(m.value), lambda m: m.value.append(2.0)),
    "tuple": (
        (1.0, [2.0]),
        lambda m, x: x * m.value[1][0],
        lambda m: m.value[1].append(0) or m.value[1].pop(0),
    ),
    "set": ({1}, lambda m, x: x * sum(m.value), lambda m: m.value.add(2)),
    "dictionary": (
        {"a": [1.0]},
        lambda m, x: x * m.value["a"][0],
        lambda m: m.value.update(a=[2.0]),
    ),
    "data class": (Config(), lambda m, x: x * m.value.scale, lambda m: set_scale(m.value)),
    "slots": (Slotted(), lambda m, x: x * m.value.scale, lambda m: set_scale(m.value)),
    "configuration in another": (
        *(SimpleNamespace(text=SimpleNamespace(scale=1.0)), lambda m, x: x * m.value.text.scale),
        lambda m: set_scale(m.value.text),
    ),
    "function": (torch.sin, lambda m, x: m.value(x), lambda m: setattr(m, "value", torch.cos)),
    "arguments of a function": (
        *(partial(torch.mul, other=2.0), lambda m, x: m.value(x)),
        lambda m: setattr(m, "value", partial(torch.mul, other=3.0)),
    ),
    "array": (
        np.ones(2),
        lambda m, x: x * float(m.value.sum()),
        lambda m: m.value.__setitem__(0, 5),
    ),
    "tensor": (torch.ones(2), lambda m, x: x * m.value.tolist()[0], lambda m: m.value.add_(1)),
    "another tensor": (
        *(torch.ones(2), lambda m, x: x * m.value.tolist()[0]),
        lambda m: setattr(m, "value", torch.zeros(2)),
    ),
    "module that is not registered": (
        *([nn.Dropout(0.0)], lambda m, x: x * (1 - m.value[0].p)),
        lambda m: setattr(m.value[0], "p", 0.5),
    ),
    "deleted": (1, lambda m, x: x * getattr(m, "value", 3), lambda m: delattr(m, "value")),
    "new": (1, lambda m, x: x * getattr(m, "other", 3), lambda m: setattr(m, "other", 2)),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_attribute_is_noticed(case: str) -> None:
    """Steps went on with the value of the trace: a temperature that was annealed stayed."""
    value, read, change = CHANGES[case]
    model, x = reading(read, value=deepcopy(value)), torch.randn(3, 4)
    eager = deepcopy(model)
    fitted = fitted_module(model, Planner(), captures=2)
    assert_trains_alike(partial(fitted, x), fitted, partial(eager, x), eager, steps=1)
    change(model)
    change(eager)
    assert_trains_alike(partial(fitted, x), fitted, partial(eager, x), eager, steps=1)


def test_real_numbers_need_no_other_plan() -> None:
    """The operators are the same: a temperature at every step runs by one plan."""
    model, x = reading(lambda m, y: y / m.tau, tau=1.0), torch.randn(3, 4)
    eager, planner = deepcopy(model), Planner()
    fitted = fitted_module(model, planner)
    for step in range(5):
        model.tau = eager.tau = 1.0 / (step + 1)
        assert_trains_alike(partial(fitted, x), fitted, partial(eager, x), eager, steps=1)
    assert planner.count == 1


def test_attributes_beyond_the_captures_are_named() -> None:
    model, x = reading(lambda m, y: y**m.power, power=1), torch.randn(3, 4)
    eager, planner = deepcopy(model), Planner()
    fitted = fitted_module(nn.Sequential(model), planner)
    fitted(x)
    model.power = eager.power = 2
    with pytest.warns(UserWarning, match=r"attributes \(attribute 'power' of module '0'\)"):
        found = fitted(x)
    assert torch.equal(found, eager(x))
    model.power = eager.power = 1
    assert torch.equal(fitted(x), eager(x))
    assert planner.count == 1


def test_attributes_that_are_not_used_are_traced_once() -> None:
    """A training loop notes its step and its loss in the model, for a log."""
    calls: list[int] = []

    def read(_module: Any, x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        return x * 2

    model, x = reading(read, step=0, log={}, loss=0.0, output=None), torch.randn(3, 4)
    fitted = fitted_module(model, planner := Planner())

    def train(first: int, last: int) -> None:
        for step in range(first, last):
            model.step, model.loss = step, 1 / (step + 1)
            model.log[step] = model.loss
            model.output = fitted(x)

    train(0, 2)
    traced = len(calls)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(2, 20)
    assert planner.count == 1
    assert len(calls) == traced


def test_an_attribute_that_is_traced_at_every_step_is_named() -> None:
    model, x = reading(lambda m, y: y * m.tau, tau=0.0), torch.randn(3, 4)
    fitted = fitted_module(nn.Sequential(model), Planner())

    def train(first: int, last: int) -> None:
        for step in range(first, last):
            model.tau = float(step)
            fitted(x)

    train(0, 8)
    with pytest.warns(UserWarning, match="'tau' of module '0' has had 8 values"):
        train(8, 9)
    train(9, 20)


def counting(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.calls += 1
    module.seen = x.shape[0]
    return x * 2


def test_counters_in_forward_count() -> None:
    """They stayed at the value that they had when the model was captured."""
    model, x = reading(counting, calls=0), torch.randn(3, 4)
    fitted = fitted_module(model, planner := Planner())
    for step in range(1, 6):
        fitted(x)
        assert (model.calls, model.seen) == (step, 3)
    with torch.no_grad():
        fitted(x)
    fitted(x)
    assert model.calls == 7
    assert planner.count == 1
    copied = deepcopy(fitted)
    copied(x)
    assert (copied.calls, model.calls) == (8, 7)


def warming(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.calls = module.calls + 1
    return x * 2 if module.calls > 2 else x


def noting(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.tau = module.calls
    module.calls += 2
    return x


def counting_thrice(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.calls += 2
    module.seen += x.shape[0]
    module.steps += 1
    return x * 2 if module.steps > 3 else x


def decaying(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.tau *= 0.5
    return x * module.tau


def starting(module: Any, x: torch.Tensor) -> torch.Tensor:
    if not module.started:
        module.started = True
        return x * 5
    return x


@pytest.mark.parametrize("read", [warming, noting, counting_thrice, decaying, starting])
def test_state_of_forward_decides_what_it_computes(
    read: Callable[[Any, torch.Tensor], torch.Tensor],
) -> None:
    model, x = reading(read, calls=0, seen=0, steps=0, tau=1.0, started=False), torch.randn(3, 4)
    eager = deepcopy(model)
    fitted = fitted_module(model, Planner(), captures=2)
    for _ in range(5):
        assert_trains_alike(partial(fitted, x), fitted, partial(eager, x), eager, steps=1)
        for name in ("calls", "seen", "steps", "tau", "started"):
            assert getattr(model, name) == getattr(eager, name)


def caching(module: Any, x: torch.Tensor) -> torch.Tensor:
    if x.shape not in module.value:
        module.value[x.shape] = 1 / x.shape[0]
    return x * module.value[x.shape]


def hooking(module: Any, x: torch.Tensor) -> torch.Tensor:
    if not module.value:
        module.value.append("a hook")
        module.linear.register_forward_hook(lambda *_: None)
    return x


@pytest.mark.parametrize(("read", "value"), [(caching, {}), (hooking, [])])
def test_what_is_changed_once_and_computes_the_same_is_left(
    read: Callable[[Any, torch.Tensor], torch.Tensor], value: Any
) -> None:
    """Hugging Face's models note the kind of a loss in their configuration, and register hooks."""
    model, x = reading(read, value=value), torch.randn(3, 4)
    eager, planner = deepcopy(model), Planner()
    fitted = fitted_module(model, planner)
    assert_trains_alike(partial(fitted, x), fitted, partial(eager, x), eager)
    assert planner.count == 1
    assert not model.value
    assert not model.linear._forward_hooks


def appending(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.value.append(x.mean())
    return x


def configuring(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.value.scale += 1
    return x


def writing(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.value.add_(1)
    return x


def replacing(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.value = [*module.value, 1]
    return x


def deleting(module: Any, x: torch.Tensor) -> torch.Tensor:
    del module.value
    return x


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (appending, []),
        (configuring, Config()),
        (replacing, []),
        (deleting, 1),
    ],
)
def test_changes_that_a_step_cannot_repeat_are_refused(
    read: Callable[[Any, torch.Tensor], torch.Tensor], value: Any
) -> None:
    """An auxiliary loss in a list got lost, and a counter in a configuration stayed."""
    model = nn.Sequential(reading(read, value=value))
    with pytest.raises(CaptureError, match="attribute 'value' of module '0' is changed by its"):
        fit(model, torch.randn(3, 4), "1MiB", cache=False)


def drawing(module: Any, x: torch.Tensor) -> torch.Tensor:
    return x * module.value.random()


GENERATORS = [np.random.default_rng(0), np.random.RandomState(0), random.Random(0)]


@pytest.mark.parametrize("generator", GENERATORS, ids=["Generator", "RandomState", "Random"])
def test_numbers_of_a_models_own_generator_are_refused(generator: Any) -> None:
    """Each step had the number of the trace."""
    expected = deepcopy(generator).random()
    model = nn.Sequential(reading(drawing, value=generator))
    with pytest.raises(CaptureError, match="attribute 'value' of module '0' .* numbers of torch"):
        fit(model, torch.randn(3, 4), "1MiB", cache=False)
    assert generator.random() == expected


def test_a_tensor_that_is_no_buffer_is_not_written() -> None:
    model = reading(writing, value=torch.zeros(()))
    with pytest.raises(CaptureError, match="writes into a tensor that is no buffer; use register"):
        fit(model, torch.randn(3, 4), "1MiB", cache=False)
    assert model.value == 0


def test_attributes_of_a_fitted_module_are_the_models() -> None:
    """`fitted.tau = 0.5` set an attribute of the wrapper, which nothing read."""
    model, x = reading(lambda m, y: y * m.tau, tau=1.0), torch.randn(3, 4)
    fitted = fitted_module(model, Planner())
    fitted.tau = 0.5
    assert model.tau == 0.5
    assert torch.equal(fitted(x), model(x))
    fitted.linear = nn.Linear(4, 4)
    assert model.linear is fitted.linear
    fitted.training = False
    assert not model.training
    del fitted.tau
    assert not hasattr(model, "tau")


def test_a_buffer_of_another_type_is_another_kind_of_step() -> None:
    model, x = reading(lambda m, y: (y + m.shift).sum(0)), torch.randn(3, 4)
    model.register_buffer("shift", torch.zeros(4))
    fitted = fitted_module(model, Planner(), captures=3)
    assert fitted(x).dtype is torch.float32
    model.shift = torch.zeros(4, dtype=torch.float64)
    assert fitted(x).dtype is torch.float64
    model.shift = torch.zeros(1)
    assert fitted(x).dtype is torch.float32


def test_unchanged_attributes_are_read_once() -> None:
    shared = SimpleNamespace(depth=3, parts=[1, 2])
    shared.itself = shared
    model = nn.Sequential(*(reading(lambda _m, y: y, config=shared) for _ in range(3)))
    reader = AttributeReader(model)
    first = reader.read()
    member: Any = model[1]
    assert reader.read() is first
    shared.parts.append(3)
    assert differing_names(first, second := reader.read()) == [(str(i), "config") for i in range(3)]
    member.number = 1
    third = reader.read()
    assert differing_names(second, third) == [("1", "number")]
    shared.parts.extend(range(20_000))
    assert len(differing_names(third, third := reader.read())) == 3
    shared.parts.append(0)
    assert len(differing_names(third, third := reader.read())) == 3
    member.number = 10**20
    fourth = reader.read()
    member.number = 10**20 + 0 * len(shared.parts)
    assert not differing_names(fourth, reader.read())
