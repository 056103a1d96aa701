"""Models of libraries, fitted by the recipe of docs/memory.md."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from headrace.memory import fit

pytestmark = pytest.mark.slow
WORDS = 64


def encoder_and_decoder() -> Any:
    """Return a small T5: its decoder has a copy of the configuration."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.1,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config).train()


def test_t5_trains_as_eager_by_the_recipe() -> None:
    """Its decoder has a configuration of its own, with a cache of keys, and was refused: steps that
    train make none.
    """
    model = encoder_and_decoder()
    ids, labels = torch.randint(2, WORDS, (2, 2, 8)).unbind()
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    sample = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    eager = deepcopy(model)
    fitted = fit(model, sample, "100MiB", cache=False)
    for step in range(2):
        losses: list[torch.Tensor] = []
        for called in (fitted, eager):
            torch.manual_seed(step)
            losses.append(called(**sample).loss)
            losses[-1].backward()
        torch.testing.assert_close(*losses)
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
