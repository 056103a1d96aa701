"""Lengths of sequences that are planned beforehand, and others, padded where that is exact."""

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.memory import CaptureError, FittedModule, fit

WORDS = 32
Inputs = Mapping[str, Tensor]


class Tagger(nn.Module):
    """Mean of the words so far, of masked positions or of all, and a tag for each position."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)
        self.masked = masked

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
        """Return the loss and the logits."""
        states = self.embedding(input_ids)
        if self.masked:
            mask = attention_mask.unsqueeze(-1).float()
            mean = (states * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        else:
            mean = states.mean(1, keepdim=True)
        logits = self.head(torch.tanh(states + mean))
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return {"loss": loss, "logits": logits}


def inputs(length: int, batch: int = 2) -> dict[str, Tensor]:
    ids, labels = torch.randint(WORDS, (2, batch, length)).unbind()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def fitted_and_eager(*, masked: bool, lengths: tuple[int, ...]) -> tuple[FittedModule, Tagger]:
    torch.manual_seed(0)
    model = Tagger(masked=masked)
    eager = deepcopy(model)
    return fit(model, [inputs(n) for n in lengths], "10MiB", cache=False), eager


def test_another_length_runs_in_the_next_larger_plan() -> None:
    fitted, eager = fitted_and_eager(masked=True, lengths=(16, 8))
    assert len(fitted.plans) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for length in (8, 16, 5, 11):
            step = inputs(length)
            outputs, expected = fitted(**step), eager(**step)
            assert outputs["logits"].shape == (2, length, WORDS)
            torch.testing.assert_close(outputs["logits"], expected["logits"])
            outputs["loss"].backward()
            expected["loss"].backward()
    assert len(fitted.plans) == 2
    for own, other in zip(fitted.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


@pytest.mark.parametrize("step", [inputs(17), inputs(5, batch=1)], ids=["longer", "other batch"])
def test_what_no_plan_has_room_for_runs_as_it_is(step: Inputs) -> None:
    fitted, eager = fitted_and_eager(masked=True, lengths=(8, 16))
    with pytest.warns(UserWarning, match="runs without one"):
        outputs = fitted(**step)
    torch.testing.assert_close(outputs["loss"], eager(**step)["loss"])
    assert len(fitted.plans) == 2


def test_one_tensor_as_ids_and_labels_is_named_where_samples_have_two() -> None:
    """The documented sample had its ids as labels, so that no batch of a loader had a plan."""
    fitted, _ = fitted_and_eager(masked=True, lengths=(8, 16))
    step = inputs(16)
    with pytest.warns(UserWarning, match="one tensor as two arguments"):
        fitted(**{**step, "labels": step["input_ids"]})


def test_a_model_that_sees_padding_gets_none() -> None:
    fitted, eager = fitted_and_eager(masked=False, lengths=(8, 16))
    step = inputs(5)
    with pytest.warns(UserWarning, match="runs without one"):
        outputs = fitted(**step)
    torch.testing.assert_close(outputs["loss"], eager(**step)["loss"])


def test_a_list_of_tensors_is_one_sample() -> None:
    model = nn.Bilinear(4, 4, 2)
    x, y = torch.randn(2, 3, 4).unbind()
    assert len(fit(model, [x, y], "1MiB", cache=False).plans) == 1


def test_fewer_captures_than_samples_are_refused() -> None:
    with pytest.raises(CaptureError, match="captures is 1, needs one for each of the 2 samples"):
        fit(Tagger(masked=True), [inputs(8), inputs(16)], "1MiB", captures=1)


def test_after_a_planned_step_no_other_kind_is_planned_unasked() -> None:
    """A smaller last batch paused the first epoch for the solver's 20 s."""
    model = nn.Linear(4, 4)
    fitted = fit(model, torch.randn(8, 4), "1MiB", cache=False)
    fitted(torch.randn(6, 4)).sum().backward()  # training begins with another kind
    assert len(fitted.plans) == 2
    fitted = fit(model, torch.randn(8, 4), "1MiB", cache=False)
    fitted(torch.randn(8, 4)).sum().backward()
    with pytest.warns(UserWarning, match="runs without one"):
        fitted(torch.randn(6, 4)).sum().backward()
    assert len(fitted.plans) == 1
    asked = fit(model, torch.randn(8, 4), "1MiB", captures=2, cache=False)
    for rows in (8, 6):
        asked(torch.randn(rows, 4)).sum().backward()
    assert len(asked.plans) == 2
