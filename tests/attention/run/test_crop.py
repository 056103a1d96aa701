"""Caches whose newest tokens are removed."""

from typing import Any

import pytest
import torch
from torch import Tensor

import headrace.attention
from headrace.attention import AttentionError, StorageFormat
from headrace.attention.adapt.observe import observe
from headrace.attention.run.cache import CompressedCache
from tests.attention.models import WORDS, model_of, plain_plan, shared_plan, with_bits


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def text_of(seed: int, tokens: int, batch: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, WORDS, (batch, tokens), generator=generator)


def representatives_of(cache: CompressedCache) -> list[list[list[int]]]:
    return [layer.layer.representatives.tolist() for layer in cache.layers]


@pytest.mark.parametrize(("tokens", "batch"), [(3, 1), (30, 1), (30, 2)])
def test_a_cache_without_tokens_clusters_the_next_text_anew(tokens: int, batch: int) -> None:
    """A cache that was cropped to no tokens shared heads by the text that had been removed."""
    model = model_of("llama")
    plan = shared_plan(model, fixed=False)
    with headrace.attention.compress(model, plan):
        fresh, cropped = (headrace.attention.cache(model, plan) for _ in range(2))
        model(input_ids=text_of(1, tokens), cache=cropped)
        cropped.crop(-tokens)
        assert cropped.get_seq_length() == 0
        next_text = text_of(2, 30, batch)
        expected = model(input_ids=next_text, cache=fresh).logits
        assert torch.equal(model(input_ids=next_text, cache=cropped).logits, expected)
        assert representatives_of(cropped) == representatives_of(fresh)
        assert cropped.allocated_bytes == fresh.allocated_bytes


def test_tokens_that_stay_keep_the_membership_that_their_keys_were_stored_by() -> None:
    model = model_of("llama")
    plan = shared_plan(model, fixed=False)
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        model(input_ids=text_of(1, 30), cache=cache)
        before = representatives_of(cache)
        cache.crop(-28)
        model(input_ids=text_of(2, 30), cache=cache)
        assert representatives_of(cache) == before


def test_an_observer_goes_on_with_the_next_text_of_a_cropped_cache_or_ends() -> None:
    model = model_of("llama")
    plan = shared_plan(model, fixed=False)
    with headrace.attention.compress(model, plan):
        for batch in (1, 2):
            cache = headrace.attention.cache(model, plan)
            observation = observe(model, cache, lambda batch: batch - 1)
            model(input_ids=text_of(1, 20, batch), cache=cache)
            cache.crop(-20)
            model(input_ids=text_of(2, 30), cache=cache)
            assert observation.ended == (batch == 2)
            assert (cache.layers[0].layer.observer is None) == (batch == 2)


def test_a_crop_that_one_layer_refuses_leaves_all_layers_as_they_were() -> None:
    """The layers before it were shorter than it afterwards, and the next call ended well."""
    model = model_of("llama")
    plan = plain_plan(model)
    with headrace.attention.compress(model, plan):
        cache, untouched = (headrace.attention.cache(model, plan) for _ in range(2))
        for other in (cache, untouched):
            model(input_ids=text_of(1, 200), cache=other)
            other.layers[1].crop(-50)
        with pytest.raises(AttentionError, match="cannot remove 170 tokens of 150"):
            cache.crop(-170)
        assert [layer.get_seq_length() for layer in cache.layers] == [200, 150]
        for other in (cache, untouched):
            other.layers[0].crop(-50)
        logits = [model(text_of(2, 3), cache=other).logits for other in (cache, untouched)]
        assert torch.equal(*logits)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_prefix_of_keys_of_four_bits_goes_on_with_another_text(mode: Any) -> None:
    """Of a text whose keys had 4 bits the first tokens could be kept up to whole groups alone."""
    model = model_of("llama")
    plan = with_bits(plain_plan(model), StorageFormat.INT4, StorageFormat.MODEL)
    text = text_of(1, 300)
    changed = torch.cat([text[:, :100], text_of(2, 30)], dim=1)
    with headrace.attention.compress(model, plan):
        cache, fresh = (headrace.attention.cache(model, plan) for _ in range(2))
        with mode():
            model(input_ids=text, cache=cache)
            cache.crop(-200)
        model(input_ids=changed[:, :100], cache=fresh)
        logits, expected = (
            model(input_ids=changed[:, 100:], cache=served).logits for served in (cache, fresh)
        )
    assert float((logits - expected).abs().max()) <= 0.2 * float(expected.abs().max())


def test_proposals_of_more_tokens_than_share_units_of_keys_are_removed() -> None:
    """The first that turned out as others ended generation in an error."""
    model: Any = model_of("llama")
    plan = with_bits(plain_plan(model), StorageFormat.INT4, StorageFormat.INT8)
    text = text_of(1, 200).repeat(1, 2)
    with headrace.attention.compress(model, plan):
        output = model.generate(
            text,
            attention_mask=torch.ones_like(text),
            do_sample=False,
            max_new_tokens=160,
            prompt_lookup_num_tokens=150,
        )
    assert output.shape[1] > text.shape[1]
