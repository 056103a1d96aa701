"""Lengths of sequences that are planned beforehand, and others, padded where that is exact."""

import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.memory import CaptureError, FittedModule, fit

pytestmark = pytest.mark.sampled(8)

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


def test_labels_of_three_dimensions_are_padded_by_positions() -> None:
    """They were padded in their last dimension, and the model refused them in `fit`."""

    class Distances(Tagger):
        def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
            states = self.head(self.embedding(input_ids))
            squares = (states - labels).square().mean(-1) * attention_mask
            return {"loss": squares.sum() / attention_mask.sum(), "logits": states}

    def distances(length: int) -> dict[str, Tensor]:
        return {**inputs(length), "labels": torch.randn(2, length, WORDS)}

    torch.manual_seed(0)
    model = Distances(masked=True)
    eager, step = deepcopy(model), distances(12)
    fitted = fit(model, [distances(n) for n in (8, 16)], "10MiB", cache=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = fitted(**step)
    expected = eager(**step)
    torch.testing.assert_close(outputs["loss"], expected["loss"])
    torch.testing.assert_close(outputs["logits"], expected["logits"])


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


def test_samples_of_one_kind_leave_the_others_their_plans() -> None:
    """The second of a kind counted as a step of training, behind which no other kind is planned."""
    samples = [(torch.randn(rows, 4),) for rows in (8, 8, 6)]
    fitted = fit(nn.Linear(4, 4), samples, "1MiB", cache=False)
    assert len(fitted.plans) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(*samples[2]).sum().backward()


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


class Extended(nn.Module):
    """A tagger with further outputs, or effects, of its states of shape [batch, length, LONGER]."""

    mean: Tensor

    def __init__(self, further: Callable[["Extended", Tensor], Any]) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, LONGER), nn.Linear(LONGER, WORDS)
        self.dropout = nn.Dropout(0.0)
        self.further = further
        self.tokens, self.copies = 0, 1
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
        """Return the loss and the further outputs."""
        states = self.dropout(self.embedding(input_ids))
        mask = attention_mask.unsqueeze(-1).float()
        mean = (states * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        logits = self.head(torch.tanh(states + mean))
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return {"loss": loss, "further": self.further(self, states), "pooled": mean.squeeze(1)}


LENGTH, LONGER = 5, 8


def count_tokens(model: Extended, states: Tensor) -> None:
    model.tokens += states.shape[1]


def average_states(model: Extended, states: Tensor) -> None:
    model.mean.mul_(0.9).add_(states.detach().mean())


def fitted_extended(
    further: Callable[[Extended, Tensor], Any],
) -> tuple[FittedModule, Extended]:
    torch.manual_seed(0)
    model = Extended(further)
    eager = deepcopy(model)
    samples = [inputs(LONGER), inputs(2 * LONGER)]
    for sample in samples:  # as the documented sample is: ids do not tell positions apart
        sample["input_ids"] = torch.zeros_like(sample["input_ids"])
    return fit(model, samples, "10MiB", cache=False), eager


@pytest.mark.parametrize(
    "further",
    [
        pytest.param(lambda _, states: ({"states": states}, [states[:, 0]]), id="nested"),
        pytest.param(lambda _, states: states[:, 1:], id="one position less"),
        pytest.param(lambda _, states: functional.pad(states, (0, 0, 1, 0)), id="one more"),
        pytest.param(lambda _, states: states @ states.mT, id="pairs"),
        pytest.param(lambda _, states: states.movedim(1, 0), id="positions first"),
        pytest.param(lambda _, states: states.new_zeros(2, LONGER, LONGER), id="none"),
    ],
)
def test_outputs_of_a_padded_call_have_eagers_shapes(
    further: Callable[[Extended, Tensor], Any],
) -> None:
    """Every dimension 1 of the padded length was cut, the features too, and nested outputs not."""
    fitted, eager = fitted_extended(further)
    step = inputs(LENGTH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = fitted(**step)
    torch.testing.assert_close(outputs, eager(**step))
    outputs["loss"].backward()
    assert len(fitted.plans) == 2


@pytest.mark.parametrize(
    "further",
    [
        pytest.param(lambda _, states: torch.cat([states, states], 1), id="doubled"),
        pytest.param(lambda _, states: (states @ states.mT).flatten(1), id="product"),
        pytest.param(lambda _, states: states.flip(1), id="reversed"),
        pytest.param(lambda _, states: states.unbind(1), id="one output per position"),
        pytest.param(lambda _, states: states.mean(1), id="mean of all positions"),
        pytest.param(lambda _, states: states.shape[1], id="length"),
        pytest.param(count_tokens, id="attribute"),
        pytest.param(average_states, id="buffer"),
        pytest.param(
            lambda _, states: functional.pad(states, (0, 0, 0, -states.shape[1] % LONGER)),
            id="multiple of a block",
        ),
    ],
)
def test_outputs_or_state_that_padding_would_change_are_eagers(
    further: Callable[[Extended, Tensor], Any],
) -> None:
    fitted, eager = fitted_extended(further)
    step = inputs(LENGTH)
    with pytest.warns(UserWarning, match="runs without one"):
        outputs = fitted(**step)
    torch.testing.assert_close(outputs, eager(**step))
    assert (fitted.tokens, fitted.mean) == (eager.tokens, eager.mean)


class WithCache(Tagger):
    """A tagger with the argument that steps set where the call does not, as for transformers."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        use_cache: bool | None = None,
    ) -> Any:
        """Return the loss and the logits."""
        return super().forward(input_ids, attention_mask, labels)


def test_calls_of_models_with_a_cache_are_padded() -> None:
    """The argument `use_cache=False`, which steps get, was in no sample: no call was padded."""
    model = WithCache(masked=True)
    fitted = fit(model, [inputs(LONGER), inputs(2 * LONGER)], "10MiB", cache=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fitted(**inputs(LENGTH))["logits"].shape == (2, LENGTH, WORDS)


def test_dropout_does_not_hide_that_padding_is_exact() -> None:
    torch.manual_seed(0)
    model = Extended(lambda _, states: states)
    model.dropout.p = 0.5
    fitted = fit(model, [inputs(LONGER), inputs(2 * LONGER)], "10MiB", cache=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fitted(**inputs(LENGTH))["further"].shape == (2, LENGTH, LONGER)


def test_outputs_that_an_attribute_changes_after_the_fit_are_eagers() -> None:
    fitted, eager = fitted_extended(lambda model, states: torch.cat([states] * model.copies, 1))
    for model in (fitted, eager):
        model.copies = 2
    step = inputs(LENGTH)
    with pytest.warns(UserWarning, match="runs without one"):
        outputs = fitted(**step)
    torch.testing.assert_close(outputs, eager(**step))
