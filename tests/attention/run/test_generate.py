"""Generation of requests whose heads follow others differently: beams, sampling, assistants."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

import headrace.attention
from headrace.attention import AttentionAdaptation, AttentionPlan, StorageFormat
from tests.attention.models import WORDS, model_of, shared_plan, with_bits

NEW = 12
BITS = {
    "model": (StorageFormat.MODEL, StorageFormat.MODEL),
    "int8": (StorageFormat.INT8, StorageFormat.INT8),
    "int4 keys": (StorageFormat.INT4, StorageFormat.INT8),
}


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(params=BITS)
def plan(request: pytest.FixtureRequest) -> AttentionPlan:
    """Each request's own membership, in every number of bits."""
    return with_bits(shared_plan(model_of("llama"), fixed=False), *BITS[request.param])


def padded_inputs(plan: AttentionPlan) -> tuple[dict[str, torch.Tensor], list[int]]:
    """Return three requests with padding before their tokens, and the tokens of it.

    There is none for keys of 4 bits: groups of 64 tokens begin with the cache, with padding, too.
    """
    tokens = torch.randint(3, WORDS, (3, 60), generator=torch.Generator().manual_seed(11))
    grouped = plan.layers[0].keys is StorageFormat.INT4
    mask, paddings = torch.ones_like(tokens), [0, 0, 0] if grouped else [0, 9, 4]
    for row, padding in enumerate(paddings):
        mask[row, :padding] = 0
    return {"input_ids": tokens, "attention_mask": mask}, paddings


def alone(inputs: dict[str, torch.Tensor], row: int, padding: int) -> dict[str, torch.Tensor]:
    return {name: tensor[row : row + 1, padding:] for name, tensor in inputs.items()}


@pytest.mark.sampled(1)
def test_beams_are_those_of_single_requests(plan: AttentionPlan) -> None:
    model = model_of("llama")
    inputs, paddings = padded_inputs(plan)
    options = {"num_beams": 3, "num_return_sequences": 2, "do_sample": False, "max_new_tokens": NEW}
    for served in (plan, AttentionAdaptation(plan, every=1)):
        with headrace.attention.compress(model, served):
            cache = headrace.attention.cache(model, plan)
            together = model.generate(**inputs, cache=cache, **options)
            for row, padding in enumerate(paddings):
                single = model.generate(**alone(inputs, row, padding), **options)
                assert torch.equal(together[2 * row : 2 * row + 2, padding:], single)
        memberships = cache.layers[0].layer.representatives
        assert len({tuple(row) for row in memberships.tolist()}) > 1


def test_sampled_sequences_have_the_logits_of_single_requests(plan: AttentionPlan) -> None:
    model = model_of("llama")
    inputs, paddings = padded_inputs(plan)
    torch.manual_seed(3)
    with headrace.attention.compress(model, plan):
        sampled = model.generate(
            **inputs,
            do_sample=True,
            num_return_sequences=2,
            max_new_tokens=NEW,
            output_logits=True,
            return_dict_in_generate=True,
        )
        assert not torch.equal(sampled.sequences[0], sampled.sequences[1])
        for sequence, tokens in enumerate(sampled.sequences):
            padding = paddings[sequence // 2]
            logits = stepwise(model, plan, tokens[padding:], len(tokens) - NEW - padding)
            batched = torch.stack([step[sequence] for step in sampled.logits])
            torch.testing.assert_close(batched[: len(logits)], logits, rtol=0, atol=1e-4)


def stepwise(
    model: nn.Module, plan: AttentionPlan, tokens: torch.Tensor, prompt: int
) -> torch.Tensor:
    """Return the logits after a prompt, and after every later token but the last."""
    end = next((at for at in range(prompt, len(tokens)) if tokens[at] == 2), len(tokens) - 1)
    cache = headrace.attention.cache(model, plan)
    logits = [model(input_ids=tokens[None, :prompt], cache=cache).logits[0, -1]]
    for token in tokens[prompt:end]:
        logits.append(model(input_ids=token[None, None], cache=cache).logits[0, -1])
    return torch.stack(logits)


@pytest.mark.sampled(1)
def test_assistants_change_no_token(plan: AttentionPlan) -> None:
    """Proposals of the assistant that are rejected leave the cache, with their codes."""
    model, assistant = model_of("llama"), model_of("llama-gqa")
    inputs = alone(padded_inputs(plan)[0], 0, 0)
    options = {"do_sample": False, "max_new_tokens": 3 * NEW}
    fixed = shared_plan(model, fixed=True)
    layers = [
        replace(layer, keys=own.keys, values=own.values)
        for layer, own in zip(fixed.layers, plan.layers, strict=True)
    ]
    for served in (plan, replace(fixed, layers=tuple(layers))):
        with headrace.attention.compress(model, served):
            expected = model.generate(**inputs, **options)
            assert torch.equal(
                model.generate(**inputs, assistant_model=assistant, **options), expected
            )
