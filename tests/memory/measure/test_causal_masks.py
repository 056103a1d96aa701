"""Masks of torch's own encoders and decoders in captured steps."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from headrace.memory.adapt.fit import fitted_module
from headrace.memory.measure.captured import Capture
from headrace.memory.plan.baselines import keep_schedule
from headrace.memory.schedule import Schedule
from tests.memory.training import assert_trains_alike

LENGTH = 6
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)
MASKS = {"causal": CAUSAL, "reversed": CAUSAL.flip(1), "of booleans": CAUSAL != 0}


def sparing(captured: Capture) -> dict[int, Schedule]:
    return {1: keep_schedule(captured.graph, ())}


@pytest.mark.parametrize("kind", MASKS)
def test_models_with_masks_train_as_eager(kind: str) -> None:
    """They were refused for control flow on values, as torch looks whether a mask is causal."""
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
    eager, mask = deepcopy(model), MASKS[kind]
    source, target = torch.randn(2, 3, LENGTH, 16)
    fitted = fitted_module(model, sparing)

    def run(module: nn.Module) -> Tensor:
        return module(source, target, src_mask=mask, tgt_mask=mask)

    runs = partial(run, fitted), fitted, partial(run, eager), eager
    assert_trains_alike(*runs, steps=2, rounded=True)


def test_a_mask_that_a_call_states_is_causal() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1)
    eager, x = deepcopy(model), torch.randn(3, LENGTH, 16)
    fitted = fitted_module(model, sparing)
    for module in (fitted, eager):
        module(x, mask=CAUSAL, is_causal=True).square().sum().backward()
    for parameter, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
