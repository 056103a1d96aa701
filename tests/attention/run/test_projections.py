"""Rows of projections of heads that are not used are not read: NaN in them changes nothing."""

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Gemma4ForCausalLM, Gemma4TextConfig, Olmo2Config, Olmo2ForCausalLM

import headrace.attention
from headrace.attention.models import attention_modules, output_layers
from headrace.attention.run.membership import UsedHeads
from tests.attention.models import MODELS, WORDS, model_of, plain_plan, shared_plan

SEPARATE = [name for name in MODELS if name != "gpt2"]
"""Models that project queries and keys apart."""
PROMPT = 7


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def tokens_of(batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(3, WORDS, (batch, 12), generator=generator)


@contextmanager
def nan_rows(model: nn.Module, used: list[UsedHeads]) -> Iterator[None]:
    """Make the rows of all other heads NaN meanwhile."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    dim = headrace.attention.layer_heads(model)[0].dim
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if index is None or not hasattr(module, "q_proj"):
            continue
        for name, runs in (("q_proj", used[index].queries), ("k_proj", used[index].keys)):
            unused = torch.ones(getattr(module, name).out_features, dtype=torch.bool)
            for first, last in runs:
                unused[first * dim : last * dim] = False
            assert unused.any()
            getattr(module, name).weight[unused] = torch.nan
    try:
        yield
    finally:
        model.load_state_dict(state)


def used_by(cache, batch: int) -> list[UsedHeads]:
    return [layer.layer.used_heads(batch) for layer in cache.layers]


@pytest.mark.parametrize("name", SEPARATE)
def test_fixed_membership_reads_the_rows_of_representatives_alone(name: str) -> None:
    model, tokens = model_of(name), tokens_of(batch=3)
    plan = shared_plan(model, fixed=True)
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        used = used_by(cache, batch=3)
        expected = model(input_ids=tokens, cache=cache).logits
        with nan_rows(model, used):
            cache = headrace.attention.cache(model, plan)
            parts = [model(input_ids=part, cache=cache).logits for part in tokens.split(5, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", SEPARATE)
def test_a_single_request_reads_its_representatives_rows_after_its_prompt(name: str) -> None:
    model, tokens = model_of(name), tokens_of(batch=2)
    plan = shared_plan(model, fixed=False)
    with headrace.attention.compress(model, plan):
        caches = [headrace.attention.cache(model, plan) for _ in range(2)]
        assert used_by(caches[0], batch=1) == [None, None]
        for cache in caches:
            model(input_ids=tokens[:1, :PROMPT], cache=cache)
        expected = model(input_ids=tokens[:1, PROMPT:], cache=caches[0]).logits
        with nan_rows(model, used_by(caches[1], batch=1)):
            logits = model(input_ids=tokens[:1, PROMPT:], cache=caches[1]).logits
        torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)
        both = headrace.attention.cache(model, plan)
        model(input_ids=tokens, cache=both)
        assert used_by(both, batch=2) == [None, None]
        both.batch_select_indices(torch.tensor([1]))
        assert None not in used_by(both, batch=1)


def test_threads_in_one_context_have_heads_of_their_own() -> None:
    model, tokens = model_of("llama"), tokens_of(batch=2)
    plan = shared_plan(model, fixed=False)
    with headrace.attention.compress(model, plan):
        alone = [continued(model, plan, row) for row in tokens.split(1)]
        others = [headrace.attention.cache(model, plan) for _ in range(2)]
        inside = threading.Barrier(2, timeout=60)
        linear = model.model.layers[0].self_attn.q_proj

        def meet(*_: object) -> None:
            inside.wait()

        handle = linear.register_forward_pre_hook(meet)
        results: list[torch.Tensor] = [torch.empty(0)] * 2

        def run(index: int) -> None:
            with torch.no_grad():
                results[index] = continued(model, plan, tokens[index : index + 1], others[index])

        threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        handle.remove()
    for result, expected in zip(results, alone, strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-5)


def continued(model, plan, tokens: torch.Tensor, cache=None) -> torch.Tensor:
    """Return the logits of the tokens after a prompt."""
    cache = cache or headrace.attention.cache(model, plan)
    model(input_ids=tokens[:, :PROMPT], cache=cache)
    return model(input_ids=tokens[:, PROMPT:], cache=cache).logits


def test_without_clusters_all_rows_are_read() -> None:
    model = model_of("llama")
    assert used_by(headrace.attention.cache(model, plain_plan(model)), batch=1) == [None, None]


def test_projections_are_as_before_whatever_happens_inside() -> None:
    model = model_of("llama")
    linear = model.model.layers[0].self_attn.q_proj
    context = headrace.attention.compress(model, shared_plan(model, fixed=True))
    context.__enter__()
    assert "forward" in vars(linear)
    error = KeyError("inside")
    assert not context.__exit__(type(error), error, None)
    assert "forward" not in vars(linear)
    assert not linear._forward_hooks


def check_projected_in_whole(model: Any, name: str) -> None:
    """Check that a layer projects the rows of all heads, though the plan uses some alone."""
    plan = shared_plan(model, fixed=True)
    with headrace.attention.compress(model, plan):
        assert "forward" not in vars(getattr(model.model.layers[0].self_attn, name))
        with nan_rows(model, used_by(headrace.attention.cache(model, plan), batch=2)):
            assert model(input_ids=tokens_of(batch=2)).logits.isnan().all()


@pytest.mark.parametrize("padding", [0, 1])
def test_queries_that_a_norm_over_all_heads_joins_are_projected_in_whole(padding: int) -> None:
    """The pass that tells was of token 0 alone: of padding it has zeros, whatever the rows are."""
    torch.manual_seed(0)
    config = Olmo2Config(
        vocab_size=WORDS,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        pad_token_id=padding,
    )
    check_projected_in_whole(Olmo2ForCausalLM(config).eval(), "q_proj")


def test_keys_that_are_values_too_are_projected_in_whole() -> None:
    """Values were zeros of heads whose keys nothing reads, as of Gemma 4's full attention."""
    torch.manual_seed(0)
    config = Gemma4TextConfig(
        vocab_size=WORDS,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_global_key_value_heads=4,
        global_head_dim=32,
        hidden_size_per_layer_input=0,
        layer_types=["full_attention"] * 2,
        attention_k_eq_v=True,
    )
    check_projected_in_whole(Gemma4ForCausalLM(config).eval(), "k_proj")


class Within(nn.Module):
    """A projection within another module, as adapters have it until they are merged."""

    def __init__(self, projection: nn.Module) -> None:
        super().__init__()
        self.projection = projection

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.projection(hidden)


def test_projections_that_become_plain_later_are_probed_then() -> None:
    """A model was probed once: with adapters there was nothing to probe, and norms over all heads
    had zeros in place of heads' rows after adapters were merged.
    """
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 64}
    config = Olmo2Config(**sizes, num_hidden_layers=1, num_attention_heads=4)
    model, tokens = Olmo2ForCausalLM(config).eval(), tokens_of(batch=1)
    plan = shared_plan(model, fixed=True)
    attention = model.model.layers[0].self_attn
    plain = attention.q_proj
    attention.q_proj = Within(plain)
    with headrace.attention.compress(model, plan):
        expected = model(input_ids=tokens).logits
    attention.q_proj = plain
    with headrace.attention.compress(model, plan):
        assert torch.equal(model(input_ids=tokens).logits, expected)


def test_an_encoder_whose_layers_have_numbers_is_none_of_the_decoders() -> None:
    """DeepSeek-OCR-2's has more layers than its decoder: an IndexError of clusters, and of
    measuring; of as many, their projections were taken for the decoder's.
    """
    plain = model_of("llama")
    plan, tokens = shared_plan(plain, fixed=True), tokens_of(batch=2)
    with headrace.attention.compress(plain, plan):
        expected = plain(input_ids=tokens).logits
    model = copy.deepcopy(plain)
    decoder = model.model
    del model.model
    attention = type(decoder.layers[0].self_attn)
    model.encoder = nn.ModuleList(attention(model.config, layer_idx=index) for index in range(4))
    model.model = decoder  # after the encoder, as such models have it
    own = [layer.self_attn for layer in decoder.layers]
    assert list(attention_modules(model)) == own
    assert list(output_layers(model)) == [module.o_proj for module in own]
    with headrace.attention.compress(model, plan):
        assert "forward" in vars(own[0].q_proj)
        assert "forward" not in vars(model.encoder[0].q_proj)
        assert torch.equal(model(input_ids=tokens).logits, expected)


def test_runs_of_heads() -> None:
    used = UsedHeads.of([5, 0, 1, 5, 2], [3])
    assert used.queries == ((0, 3), (5, 6))
    assert used.keys == ((3, 4),)
