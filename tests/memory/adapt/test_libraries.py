"""Models of libraries, fitted by the recipe of docs/memory.md."""

import warnings
from copy import deepcopy
from typing import Any

import pytest
import torch

from headrace.memory import fit, fit_blocks

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


def decoder() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        use_cache=False,
        attn_implementation="eager",  # whose probabilities are outputs
    )
    return transformers.LlamaForCausalLM(config).train()


@pytest.mark.filterwarnings("error")
def test_hooks_that_collect_outputs_do_not_matter_to_steps_without_them() -> None:
    """One call with output_hidden_states=True, and no later step had a schedule."""
    model, ids = decoder(), torch.randint(WORDS, (2, 8))
    sample = {"input_ids": ids, "labels": ids}
    fitted = fit(model, sample, "100MiB", cache=False)
    states = model.eval()(**sample, output_hidden_states=True).hidden_states
    model.train()
    loss = fitted(**sample).loss
    loss.backward()
    torch.testing.assert_close(loss, model(**sample).loss)
    fit(model, sample, "100MiB", cache=False)(**sample).loss.backward()
    torch.testing.assert_close(model(**sample, output_hidden_states=True).hidden_states, states)


def test_hidden_states_of_fitted_blocks() -> None:
    """There were none, as a fitted block was no instance of its class."""
    model, ids = decoder(), torch.randint(WORDS, (2, 8))
    sample = {"input_ids": ids, "labels": ids, "output_hidden_states": True}
    expected = deepcopy(model)(**sample)
    layers = list(model.model.layers)
    fitted = fit_blocks(model, layers, {"input_ids": ids, "labels": ids}, "100MiB", cache=False)
    assert all(map(isinstance, fitted.blocks, map(type, layers)))
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            outputs = model(**sample)
        torch.testing.assert_close(outputs.hidden_states, expected.hidden_states)
        outputs.hidden_states[1].sum().backward()
    with pytest.warns(UserWarning, match="other shapes, strides"):
        assert len(model(**sample, output_attentions=True).attentions) == len(layers)
