"""States of training loops, through the bytes of a file."""

import random
from collections import deque
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headrace.embeddings import EmbeddingError
from headrace.embeddings.run.trainers.trainer_state import (
    TrainerState,
    random_state,
    set_random_state,
    state_from_bytes,
    state_to_bytes,
)


def loop() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.StepLR]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.StepLR,
    steps: int,
) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        examples = torch.rand(5, 3) + np.random.random() + random.random()
        model(examples).square().mean().backward()
        optimizer.step()
        schedule.step()


def test_a_restored_loop_goes_on_as_the_one_that_was_saved() -> None:
    model, optimizer, schedule = loop()
    train(model, optimizer, schedule, 3)
    state = TrainerState(model, [optimizer], {"schedule": schedule})
    content = state_to_bytes(state.capture(dense=True))
    train(model, optimizer, schedule, 3)
    expected = {name: value.clone() for name, value in model.state_dict().items()}

    torch.manual_seed(99)
    other, other_optimizer, other_schedule = loop()
    saved = state_from_bytes(content, "state")
    TrainerState(other, [other_optimizer], {"schedule": other_schedule}).restore_parts(saved)
    set_random_state(saved["random"])
    train(other, other_optimizer, other_schedule, 3)
    for name, value in other.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_random_numbers_go_on_where_they_were() -> None:
    state = random_state()

    def drawn() -> list[float]:
        return [float(torch.randn(1)), float(np.random.standard_normal()), random.gauss(0, 1)]

    first = drawn()
    set_random_state(
        state_from_bytes(state_to_bytes({"parts": {}, "random": state}), "state")["random"]
    )
    assert drawn() == first


def test_a_host_may_have_fewer_gpus_than_that_of_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that began from the commit there ended with an IndexError."""
    generators = [torch.ByteTensor([gpu]) for gpu in range(4)]
    state = random_state() | {"cuda": generators}
    restored: list[list[torch.Tensor]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", restored.append)
    set_random_state(state)
    assert restored == [generators[:2]]


def test_what_does_not_fit_is_refused() -> None:
    model, optimizer, schedule = loop()
    with pytest.raises(EmbeddingError, match=r"0\.weight is in no optimizer that fit got"):
        TrainerState(model, [], {})
    saved = TrainerState(model, [optimizer], {}).capture(dense=True)
    with pytest.raises(EmbeddingError, match="state schedule"):
        TrainerState(model, [optimizer], {"schedule": schedule}).restore_parts(saved)
    wider = nn.Linear(5, 4)
    with pytest.raises(EmbeddingError, match="model is not that of the commit"):
        TrainerState(wider, [torch.optim.Adam(wider.parameters())], {}).restore_parts(saved)
    with pytest.raises(EmbeddingError, match="state: is no state of a trainer"):
        state_from_bytes(b"nothing", "state")


class Kept:
    """An object of a user's, whose state is one of anything."""

    def __init__(self, state: object) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict["state"]


class Level(IntEnum):
    ONE = 1


def test_numbers_of_numpy_come_back_as_python_s() -> None:
    """A rate that NumPy computed was in commits that no job could begin from."""
    model, optimizer, _ = loop()
    counts = {np.int64(3): [np.float64(0.5), np.bool_(True)], "none": (None, {1, 2}, 1j)}
    state = TrainerState(model, [optimizer], {"counts": Kept(counts)})
    optimizer.param_groups[0]["lr"] = np.float64(0.25)
    saved = state_from_bytes(state_to_bytes(state.capture(dense=True)), "state")
    assert type(saved["parts"]["optimizer 0"]["param_groups"][0]["lr"]) is float
    other_model, other, _ = loop()
    restored = Kept(None)
    TrainerState(other_model, [other], {"counts": restored}).restore_parts(saved)
    assert other.param_groups[0]["lr"] == 0.25
    assert restored.state == {3: [0.5, True], "none": (None, {1, 2}, 1j)}


@pytest.mark.parametrize(
    "state", [np.zeros(2), deque([1]), Level.ONE, [{"levels": (Level.ONE,)}], lambda: None]
)
def test_what_could_not_be_read_again_is_refused_before_a_commit(state: Any) -> None:
    """Commits were made, and what began from one ended with an error: all was lost."""
    model, optimizer, _ = loop()
    kind = "Level" if isinstance(state, list) else type(state).__name__
    message = f"^state own has a {kind} in its state_dict.*could not read it: needs tensors"
    with pytest.raises(EmbeddingError, match=message):
        TrainerState(model, [optimizer], {"own": Kept(state)})
    later = Kept(0)
    trained = TrainerState(model, [optimizer], {"own": later})
    later.state = state
    with pytest.raises(EmbeddingError, match=message):
        trained.capture(dense=True)
    assert trained.capture(dense=False)["parts"] == {}


def test_a_state_that_does_not_fit_in_one_part_changes_none() -> None:
    """The model had the commit's parameters, and the optimizer its own state."""
    model, optimizer, _ = loop()
    other, _, _ = loop()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    part_of_it = torch.optim.Adam([*other.parameters()][:3])
    saved = {"parts": {"model": other.state_dict(), "optimizer 0": part_of_it.state_dict()}}
    with pytest.raises(EmbeddingError, match="optimizer 0 is not that of the commit"):
        TrainerState(model, [optimizer], {}).restore_parts(saved)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_error_of_any_kind_of_a_user_s_object_changes_none() -> None:
    model, optimizer, _ = loop()
    other, other_optimizer, _ = loop()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    saved = TrainerState(other, [other_optimizer], {"own": Kept(1)}).capture(dense=True)

    class Rates(Kept):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            if state_dict["state"] != [2]:
                raise TypeError("rates are a list")

    state = TrainerState(model, [optimizer], {"own": Rates([2])})
    with pytest.raises(EmbeddingError, match="state own is not .* of the commit: rates are a list"):
        state.restore_parts(saved)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_parameters_that_commits_would_lose_are_refused() -> None:
    """Weights of a loss began anew in a job that went on from a commit, and nothing said so."""
    model, _, _ = loop()
    loss = nn.ParameterList([torch.ones(3)])
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()])
    with pytest.raises(EmbeddingError, match=r"optimizer 0 has a parameter of shape \[3\] that is"):
        TrainerState(model, [optimizer], {})
    state = TrainerState(model, [optimizer], {"losses": loss}).capture(dense=True)
    assert state["parts"]["state losses"]["0"].tolist() == [1, 1, 1]
