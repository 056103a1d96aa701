"""The comparison by which the tests and the benchmark tell that a model has changed."""

# pyright: reportPrivateUsage=false

import copy
import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.memory.failures import Shared
from tests.memory.states import differences, state_of_objects


class Detailed(Shared):
    """A model with every kind of part that a trace could leave changed."""

    def __init__(self) -> None:
        super().__init__()
        self.nested = {"layers": [1, {"deep": [torch.zeros(2)]}]}
        self.names, self.array = {"a"}, np.zeros(2)
        self.generator = torch.Generator()
        self.first.weight.grad = torch.ones(6, 6)
        self.optimizer = torch.optim.Adam(self.parameters())
        self.optimizer.step()


def _fake(model: Detailed) -> None:
    with FakeTensorMode() as mode:
        model.first._parameters["weight"] = mode.from_tensor(model.first.weight)  # pyright: ignore


CHANGES: Mapping[str, Callable[[Detailed], object]] = {
    "parameter replaced by an equal one": lambda model: setattr(
        model.first, "weight", nn.Parameter(model.first.weight.detach().clone())
    ),
    "parameter replaced by a fake one": _fake,
    "value of a parameter": lambda model: model.tied.weight.data.add_(1),
    "value of a buffer": lambda model: model.norm.running_mean.add_(1),  # pyright: ignore
    "buffer added": lambda model: model.register_buffer("further", torch.zeros(1)),
    "attribute added": lambda model: setattr(model, "further", 1),
    "attribute of another type": lambda model: setattr(model.dropout, "p", np.float64(0.3)),
    "attribute removed": lambda model: delattr(model, "history"),
    "alias cut": lambda model: setattr(model, "again", copy.deepcopy(model.first)),
    "content of a list": lambda model: model.history.append(2.0),
    "content of a nested list": lambda model: model.nested["layers"][1].update(deep=[]),  # pyright: ignore
    "value of a nested tensor": lambda model: model.nested["layers"][1]["deep"][0].add_(1),  # pyright: ignore
    "list replaced by an equal one": lambda model: setattr(model, "history", [1.0]),
    "content of a set": lambda model: model.names.add("b"),
    "content of an array": lambda model: model.array.fill(1),
    "mode": lambda model: model.dropout.eval(),
    "hook of a module": lambda model: model.norm.register_forward_hook(lambda *_: None),
    "hook of a parameter": lambda model: model.first.weight.register_hook(lambda _: None),
    "gradient removed": lambda model: setattr(model.first.weight, "grad", None),
    "value of a gradient": lambda model: model.first.weight.grad.add_(1),  # pyright: ignore
    "requires_grad": lambda model: model.norm.weight.requires_grad_(False),
    "class": lambda model: setattr(model, "__class__", Shared),
    "optimizer's state": lambda model: model.optimizer.state[model.first.weight]["exp_avg"].add_(1),
    "optimizer's entries": lambda model: model.optimizer.state.clear(),
    "optimizer's options": lambda model: model.optimizer.param_groups[0].update(lr=1.0),
    "generator of the model": lambda model: torch.rand(1, generator=model.generator),
    "generator of torch": lambda _: torch.rand(1),
    "generator of NumPy": lambda _: np.random.random(),
    "generator of Python": lambda _: random.random(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_kind_of_change_is_noticed(change: str) -> None:
    """Contents of lists and values of gradients were not compared: such harm counted as none."""
    model = Detailed()
    before = state_of_objects(model)
    assert differences(before, state_of_objects(model)) == []
    CHANGES[change](model)
    assert differences(before, state_of_objects(model)), change
