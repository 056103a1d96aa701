"""Options and models that compressed attention does not serve are refused by name."""

import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DogeConfig,
    DogeForCausalLM,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    JetMoeConfig,
    JetMoeForCausalLM,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MiniMaxM3SparseForConditionalGeneration,
    MiniMaxM3VLConfig,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    StaticCache,
)

import headrace.attention
from headrace.attention import AttentionError, AttentionPlan, StorageFormat, layer_heads
from headrace.attention.models import collecting, model_digest
from tests.attention.models import WORDS, model_of, plain_plan, shared_plan, with_bits

TINY = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**TINY, "num_key_value_heads": 2}


def tokens_of(count: int = 23, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, WORDS, (batch, count), generator=generator)


def generate(model: Any, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
    mask = torch.ones_like(tokens)
    return model.generate(tokens, attention_mask=mask, max_new_tokens=6, do_sample=False, **options)


ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a bidirectional model": (
        lambda: BertLMHeadModel(BertConfig(**TINY)),
        r"BertSelfAttention lets tokens see later ones \(is_causal is False\)",
    ),
    "biases by position": (
        lambda: BloomForCausalLM(
            BloomConfig(vocab_size=WORDS, hidden_size=64, n_layer=1, n_head=2)
        ),
        "BloomForCausalLM does not compute attention through Transformers' AttentionInterface",
    ),
    "an interface of its own": (
        lambda: DogeForCausalLM(DogeConfig(**GROUPED)),
        "DogeForCausalLM has an AttentionInterface of its own",
    ),
    "latent keys": (
        lambda: DeepseekV3ForCausalLM(
            DeepseekV3Config(
                **GROUPED,
                q_lora_rank=8,
                kv_lora_rank=8,
                qk_rope_head_dim=16,
                qk_nope_head_dim=16,
                v_head_dim=24,
                first_k_dense_replace=2,
            )
        ),
        "DeepseekV3ForCausalLM has values of 24 dimensions and queries of 32",
    ),
    "windows": (
        lambda: Gemma2ForCausalLM(Gemma2Config(**GROUPED, head_dim=32)),
        "Gemma2ForCausalLM has layers of sliding_attention: only full attention",
    ),
    "caps of scores": (
        lambda: Gemma2ForCausalLM(
            Gemma2Config(**GROUPED, head_dim=32, layer_types=["full_attention"] * 2)
        ),
        "Gemma2Attention has softcap: only plain scores",
    ),
    "sinks": (
        lambda: GptOssForCausalLM(
            GptOssConfig(
                **GROUPED,
                head_dim=32,
                num_local_experts=2,
                num_experts_per_tok=1,
                layer_types=["full_attention"] * 2,
            )
        ),
        "GptOssAttention has s_aux: only plain scores",
    ),
    "blocks of tokens by an index": (
        lambda: MiniMaxM3SparseForConditionalGeneration(
            MiniMaxM3VLConfig(
                text_config={
                    **GROUPED,
                    "head_dim": 32,
                    "num_local_experts": 2,
                    "num_experts_per_tok": 1,
                    "dense_intermediate_size": 32,
                    "shared_intermediate_size": 32,
                    "index_n_heads": 2,
                    "index_head_dim": 16,
                    "index_block_size": 4,
                    "layer_types": ["minimax_m3_sparse"] * 2,
                },
                vision_config={
                    "hidden_size": 32,
                    "intermediate_size": 32,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                },
                projector_hidden_size=32,
            )
        ),
        "MiniMaxM3VLAttention has block_indices: only plain scores",
    ),
    "no attention": (
        lambda: MambaForCausalLM(
            MambaConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, state_size=4)
        ),
        "MambaForCausalLM ",
    ),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_that_are_not_served_are_refused_by_name(name: str) -> None:
    make, message = ARCHITECTURES[name]
    with pytest.raises(AttentionError, match=message):
        layer_heads(make().eval())


def test_keys_that_change_after_the_cache_are_refused_at_the_first_call() -> None:
    model = JetMoeForCausalLM(
        JetMoeConfig(
            vocab_size=WORDS,
            hidden_size=64,
            num_hidden_layers=1,
            num_key_value_heads=2,
            kv_channels=16,
            intermediate_size=32,
            num_local_experts=2,
            num_experts_per_tok=2,
        )
    ).eval()
    with (
        torch.no_grad(),
        headrace.attention.compress(model, plain_plan(model)),
        pytest.raises(AttentionError, match="one that changes keys after its cache"),
    ):
        model(tokens_of())


@torch.no_grad()
def test_projections_of_queries_keys_and_values_in_one_are_served() -> None:
    """GPT-2's are another one: `tests.attention.models`."""
    torch.manual_seed(0)
    model = Phi3ForCausalLM(Phi3Config(**GROUPED)).eval()
    expected = generate(model, tokens_of(), pad_token_id=0)
    with headrace.attention.compress(model, plain_plan(model)):
        assert torch.equal(generate(model, tokens_of(), pad_token_id=0), expected)


@torch.no_grad()
@pytest.mark.parametrize("window", [64, 63])
def test_a_window_of_all_positions_is_none(window: int) -> None:
    """Phi-3's of 262,144 tokens, for 131,072 positions, was refused as one that hides tokens."""
    torch.manual_seed(0)
    config = Phi3Config(**GROUPED, sliding_window=window, max_position_embeddings=64)
    model = Phi3ForCausalLM(config).eval()
    if window < 64:
        with pytest.raises(AttentionError, match="Phi3Attention has sliding_window: only plain"):
            layer_heads(model)
        return
    expected = generate(model, tokens_of(40), pad_token_id=0)
    with headrace.attention.compress(model, plain_plan(model)):
        assert torch.equal(generate(model, tokens_of(40), pad_token_id=0), expected)


@torch.no_grad()
def test_a_decoder_is_served_without_the_text_that_it_may_attend_to() -> None:
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_embd=64, n_layer=1, n_head=2, add_cross_attention=True)
    ).eval()
    expected = model(tokens_of()).logits
    with headrace.attention.compress(model, plain_plan(model)):
        torch.testing.assert_close(model(tokens_of()).logits, expected)
        with pytest.raises(AttentionError, match="encoder_hidden_states are passed: cross"):
            model(tokens_of(), encoder_hidden_states=torch.zeros(1, 5, 64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_implementation": "quantized"}, "cache_implementation is 'quantized'"),
        ({"use_cache": False}, "use_cache is False, in the call or"),
        ({"use_mtp": True}, "use_mtp is True: the layers that predict"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions is True"),
    ],
)
def test_options_of_generation_that_are_not_served(options: dict[str, Any], message: str) -> None:
    """Without a cache every step read all tokens anew, and wrote them once more."""
    model = model_of("llama")
    with (
        headrace.attention.compress(model, plain_plan(model)),
        pytest.raises(AttentionError, match=message),
    ):
        generate(model, tokens_of(), **options)


def test_options_of_a_config_that_is_passed_by_place_are_read() -> None:
    """Only one by name was."""
    model = model_of("llama")
    config = copy.deepcopy(model.generation_config)
    config.use_cache = False
    with (
        headrace.attention.compress(model, plain_plan(model)),
        pytest.raises(AttentionError, match="use_cache is False, in the call or"),
    ):
        model.generate(tokens_of(), config)


def test_paged_caches_are_refused_by_name() -> None:
    model = model_of("llama")
    with (
        headrace.attention.compress(model, plain_plan(model)),
        pytest.raises(ValueError, match="headrace is not supported for continuous batching"),
    ):
        model.generate_batch(tokens_of().tolist(), max_new_tokens=2)


@torch.no_grad()
def test_probabilities_that_a_models_config_asks_for_are_refused() -> None:
    """The output had none, and no error."""
    model = copy.deepcopy(model_of("llama"))
    model.set_attn_implementation("eager")
    model.config.output_attentions = True
    with headrace.attention.compress(model, plain_plan(model)):
        with pytest.raises(AttentionError, match="output_attentions is True, in the call or in"):
            model(tokens_of())
        assert model(tokens_of(), output_attentions=False).logits.shape == (1, 23, WORDS)


@pytest.mark.parametrize(
    ("field", "setting", "message"),
    [
        ("cache_implementation", "static", "cache_implementation is 'static'"),
        ("use_cache", False, "use_cache is False"),
    ],
)
def test_a_models_own_options_of_generation_are_read(
    field: str, setting: object, message: str
) -> None:
    model = copy.deepcopy(model_of("llama"))
    setattr(model.generation_config, field, setting)
    with headrace.attention.compress(model, plain_plan(model)):
        with pytest.raises(AttentionError, match=message):
            generate(model, tokens_of())
        if field == "use_cache":
            assert generate(model, tokens_of(), use_cache=True).shape[1] > 23


@torch.no_grad()
def test_a_compressed_cache_is_not_read_outside_the_context() -> None:
    """The model attended to each call's own tokens alone, and said nothing."""
    model = model_of("llama")
    plan = plain_plan(model)
    cache = headrace.attention.cache(model, plan)
    for call in (
        lambda: model(tokens_of(), cache=cache),
        lambda: generate(model, tokens_of(), cache=cache),
    ):
        with pytest.raises(AttentionError, match=r"within headrace\.attention\.compress\(model"):
            call()
    with headrace.attention.compress(model, plan):
        model(tokens_of(), cache=cache)
    assert cache.get_seq_length() == 23


@torch.no_grad()
def test_contexts_within_one_another_end_in_order() -> None:
    model = model_of("llama")
    exact = model(tokens_of()).logits
    eight = with_bits(plain_plan(model), StorageFormat.INT8, StorageFormat.INT8)
    shared = shared_plan(model, fixed=True)
    with headrace.attention.compress(model, shared):
        outer = model(tokens_of()).logits
        with headrace.attention.compress(model, plain_plan(model)):
            torch.testing.assert_close(model(tokens_of()).logits, exact)
        assert torch.equal(model(tokens_of()).logits, outer)
    assert not torch.equal(outer, exact)
    assert torch.equal(model(tokens_of()).logits, exact)
    with headrace.attention.compress(model, eight):
        pass


def test_contexts_of_generators_end_in_any_order() -> None:
    """The model stayed compressed, and lost `generate`: two streams of tokens of one thread."""
    model = copy.deepcopy(model_of("llama"))
    stock = generate(model, tokens_of())

    def stream(plan: AttentionPlan) -> Iterator[torch.Tensor]:
        with headrace.attention.compress(model, plan):
            while True:
                yield generate(model, tokens_of())

    outer, inner = stream(shared_plan(model, fixed=True)), stream(plain_plan(model))
    assert not torch.equal(next(outer), stock)
    assert torch.equal(next(inner), stock)
    outer.close()
    assert torch.equal(next(inner), stock)
    later = stream(shared_plan(model, fixed=True))
    assert not torch.equal(next(later), stock)
    inner.close()
    later.close()
    assert "generate" not in vars(model)
    assert not model._forward_pre_hooks
    assert model.config._attn_implementation != "headrace"
    assert torch.equal(generate(model, tokens_of()), stock)


def test_a_second_thread_does_not_enter_but_may_generate() -> None:
    """Two contexts ended in the wrong order: the model stayed compressed, and lost `generate`."""
    model = copy.deepcopy(model_of("llama"))
    plan = plain_plan(model)
    expected = generate(model, tokens_of())
    results: dict[str, Any] = {}

    def enter() -> None:
        try:
            with headrace.attention.compress(model, plan):
                pass
        except AttentionError as error:
            results["error"] = str(error)

    def call(name: str) -> None:
        results[name] = generate(model, tokens_of())

    with headrace.attention.compress(model, plan):
        threads = [
            threading.Thread(target=enter),
            *(threading.Thread(target=call, args=(name,)) for name in ("first", "second")),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert "another thread compresses this LlamaForCausalLM already" in results["error"]
    assert torch.equal(results["first"], expected)
    assert torch.equal(results["second"], expected)
    assert model.config._attn_implementation != "headrace"
    assert torch.equal(generate(model, tokens_of()), expected)


@torch.no_grad()
def test_sequences_packed_into_a_row_are_refused() -> None:
    """Transformers hides them from each other where there is no cache; with one it does not."""
    model = model_of("llama")
    positions = torch.cat([torch.arange(10), torch.arange(13)])[None]
    mask = torch.ones_like(tokens_of())
    mask[0, :3] = 0
    padded = (mask.cumsum(1) - 1).clamp_min(0)
    expected = model(tokens_of(), attention_mask=mask, position_ids=padded).logits
    with headrace.attention.compress(model, plain_plan(model)):
        with pytest.raises(AttentionError, match="position_ids begin again within a row"):
            model(tokens_of(), position_ids=positions)
        served = model(tokens_of(), attention_mask=mask, position_ids=padded).logits
        model(tokens_of(), position_ids=torch.arange(23)[None])
    torch.testing.assert_close(served[:, 3:], expected[:, 3:])


@torch.no_grad()
def test_positions_of_images_are_no_sequences_packed_into_a_row() -> None:
    """Those of Qwen2-VL, in whose images several tokens have a position, were refused as such."""
    sections = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config = Qwen2VLConfig(
        text_config={**GROUPED, "num_attention_heads": 4, "rope_parameters": sections},
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2},
    )
    model = Qwen2VLForConditionalGeneration(config).eval()
    of_texts = torch.arange(23)
    of_images = torch.stack([of_texts // 4, of_texts // 2, of_texts % 2])[:, None]
    with_texts = torch.cat([of_texts[None, None], of_images])
    packed = torch.cat([torch.cat([torch.arange(10), torch.arange(13)])[None, None], of_images])
    calls = [{"position_ids": positions} for positions in (of_images, with_texts)]
    expected = [model(tokens_of(), **call).logits for call in calls]
    with headrace.attention.compress(model, plain_plan(model)):
        served = [model(tokens_of(), **call).logits for call in calls]
        with pytest.raises(AttentionError, match="position_ids begin again within a row"):
            model(tokens_of(), position_ids=packed)
    torch.testing.assert_close(served, expected)


def test_training_is_refused_by_what_it_needs() -> None:
    config = copy.deepcopy(model_of("llama").config)
    config.attention_dropout = 0.5
    model = LlamaForCausalLM(config).train()
    with headrace.attention.compress(model, plain_plan(model)):
        with torch.no_grad(), pytest.raises(AttentionError, match=r"call model\.eval\(\) first"):
            model(tokens_of())
        with pytest.raises(AttentionError, match=r"no gradients: use torch\.no_grad"):
            model(tokens_of())
        model.activation_checkpointing_enable()
        with pytest.raises(AttentionError, match=r"no gradients: use torch\.no_grad"):
            model(tokens_of())
        model.eval()
        with torch.inference_mode():
            assert model(tokens_of()).logits.shape == (1, 23, WORDS)


@pytest.mark.parametrize("projection", ["k_proj", "v_proj"])
def test_training_of_keys_or_values_alone_is_refused(projection: str) -> None:
    """They had no gradients after calls of a few tokens, and nothing said so."""
    model: Any = copy.deepcopy(model_of("llama")).requires_grad_(False)
    getattr(model.model.layers[-1].self_attn, projection).requires_grad_(True)
    with (
        headrace.attention.compress(model, plain_plan(model)),
        pytest.raises(AttentionError, match=r"no gradients: use torch\.no_grad"),
    ):
        model(tokens_of(3))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_and_autocast(dtype: torch.dtype) -> None:
    model = copy.deepcopy(model_of("llama")).to(dtype)
    plan = plain_plan(model)
    exact = model(tokens_of()).logits
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        model(tokens_of()[:, :12], cache=cache)
        logits = model(tokens_of()[:, 12:], cache=cache).logits
    torch.testing.assert_close(logits, exact[:, 12:], rtol=0.05, atol=0.05)
    if dtype is torch.bfloat16:
        single = model_of("llama")
        with (
            torch.autocast("cpu", dtype),
            headrace.attention.compress(single, plain_plan(single)),
        ):
            assert generate(single, tokens_of()).shape == (1, 29)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda model: ("gpt2", plain_plan(model)), "the model is a str, needs a model of"),
        (lambda model: (model, "model.plan"), "the plan is a str, needs an AttentionPlan"),
        (lambda model: (model, None), "the plan is a NoneType, needs an AttentionPlan"),
        (
            lambda model: (torch.compile(model), plain_plan(model)),
            "the model is compiled: pass the one that torch.compile was given",
        ),
        (
            lambda model: (nn.Sequential(model), plain_plan(model)),
            "Sequential is no model of Transformers",
        ),
        (
            lambda model: (copy.deepcopy(model).to("meta"), plain_plan(model)),
            "LlamaForCausalLM is on the meta device, .* in whole, without offloading",
        ),
    ],
)
def test_what_is_no_model_or_no_plan(arguments: Callable[..., Any], message: str) -> None:
    model, plan = arguments(model_of("llama"))
    with pytest.raises(AttentionError, match=message), headrace.attention.compress(model, plan):
        pass


@torch.no_grad()
def test_caches_that_are_not_the_plans_are_refused_by_name() -> None:
    model = model_of("llama")
    plan = plain_plan(model)
    with headrace.attention.compress(model, plan):
        static = StaticCache(config=model.config, max_cache_len=64)
        with pytest.raises(AttentionError, match="the cache is a StaticCache: within compress"):
            generate(model, tokens_of(), cache=static)
        with pytest.raises(AttentionError, match="the cache is a tuple: within compress"):
            model(tokens_of(), cache=((torch.zeros(1, 4, 3, 32),) * 2,) * 2)
        other = model_of("llama-gqa")
        with pytest.raises(AttentionError, match="keys has 4 heads of 32, the plan 2 of 32"):
            model(tokens_of(), cache=headrace.attention.cache(other, plain_plan(other)))
        cache = headrace.attention.cache(model, plan)
        model(tokens_of(batch=2), cache=cache)
        with pytest.raises(AttentionError, match="one of 2 in the same cache: batch_repeat"):
            model(tokens_of(), cache=cache)
        with pytest.raises(AttentionError, match="cannot be offloaded"):
            cache.layers[0].offload()
        with pytest.raises(AttentionError, match="cannot remove 100 tokens of 23"):
            cache.crop(-100)
        with pytest.raises(AttentionError, match="crop takes a negative number"):
            cache.crop(3)
    for count in (0, -1):
        with pytest.raises(AttentionError, match=f"max_tokens is {count}, needs at least 1"):
            headrace.attention.cache(model, plan, max_tokens=count)


def test_compressing_a_part_of_the_model_that_generates_is_named() -> None:
    """The error asked for no cache, where generate had made one; a plan was for other weights."""
    model = model_of("llama")
    plan = plain_plan(model)
    with (
        headrace.attention.compress(model.model, plan),
        pytest.raises(AttentionError, match="DynamicCache: .* the model that has the LlamaModel"),
    ):
        generate(model, tokens_of())
    plan = replace(plan, model=model_digest(model))
    with (
        pytest.raises(AttentionError, match="a model that has this LlamaModel within: compress"),
        headrace.attention.compress(model.model, plan),
    ):
        pass


@torch.no_grad()
def test_masks_that_add_to_scores_are_refused_and_hidden_rows_give_numbers() -> None:
    model = model_of("llama")
    later = torch.ones(23, 23, dtype=torch.bool).triu(1)
    hiding = torch.zeros(1, 1, 23, 23).masked_fill(later, -torch.inf)
    expected = model(tokens_of(), attention_mask=hiding).logits
    with headrace.attention.compress(model, plain_plan(model)):
        torch.testing.assert_close(model(tokens_of(), attention_mask=hiding).logits, expected)
        with pytest.raises(AttentionError, match="the mask adds to scores"):
            model(tokens_of(), attention_mask=torch.randn(1, 1, 23, 23))
    mask = torch.ones(2, 23, dtype=torch.int64)
    mask[0] = 0
    for plan in (plain_plan(model), shared_plan(model, fixed=False)):
        with headrace.attention.compress(model, plan):
            assert model(tokens_of(batch=2), attention_mask=mask).logits.isfinite().all()


@torch.no_grad()
def test_masks_that_show_first_tokens_later_ones_need_fixed_membership() -> None:
    """The first five saw no later ones, whatever the mask was: other logits, and no error."""
    model = model_of("llama")
    own, fixed = (shared_plan(model, fixed=fixed) for fixed in (False, True))
    shows = torch.ones(1, 1, 23, 23, dtype=torch.bool).tril()
    with headrace.attention.compress(model, own):
        causal = model(tokens_of()).logits
        torch.testing.assert_close(model(tokens_of(), attention_mask=shows).logits, causal)
        shows[..., :8, :8] = True
        cache = headrace.attention.cache(model, own)
        with pytest.raises(AttentionError, match="more than causal among a request's first"):
            model(tokens_of(), attention_mask=shows, cache=cache)
        assert cache.get_seq_length() == 0
    expected = model(tokens_of(), attention_mask=shows).logits
    with headrace.attention.compress(model, plain_plan(model)):
        torch.testing.assert_close(model(tokens_of(), attention_mask=shows).logits, expected)
    with headrace.attention.compress(model, fixed):
        assert model(tokens_of(), attention_mask=shows).logits.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("token", [15, 2])
def test_nan_spreads_as_in_the_stock_model(token: int) -> None:
    """Among the first five tokens of a request it was a ValueError of the clustering."""
    model = copy.deepcopy(model_of("llama"))
    model.get_input_embeddings().weight[int(tokens_of()[0, token])] = torch.nan
    place = int((tokens_of()[0] == tokens_of()[0, token]).nonzero()[0])
    stock = model(tokens_of()).logits.isnan().any(-1)
    stock_cache = DynamicCache()
    stepwise = [model(part, cache=stock_cache).logits for part in tokens_of().split(1, dim=1)]
    steps = torch.cat(stepwise, 1).isnan().any(-1)
    assert steps[0, place:].all()
    assert not steps[0, :place].any()
    own = shared_plan(model, fixed=False)
    for plan in (plain_plan(model), shared_plan(model, fixed=True), own):
        with headrace.attention.compress(model, plan):
            cache = headrace.attention.cache(model, plan)
            parts = [model(part, cache=cache).logits for part in tokens_of().split(1, dim=1)]
            whole = model(tokens_of()).logits.isnan().any(-1)
        assert torch.equal(torch.cat(parts, 1).isnan().any(-1), steps)
        # in one pass the stock kernel multiplies NaN of later tokens by 0, which is NaN; a
        # request's first tokens are computed apart from later ones
        assert torch.equal(whole, stock) or (plan is own and whole[0, place:].all())


@torch.no_grad()
def test_layers_may_have_different_numbers_of_heads() -> None:
    model = copy.deepcopy(model_of("llama"))
    fewer = copy.deepcopy(model.config)
    fewer.num_attention_heads, fewer.num_key_value_heads, fewer.head_dim = 2, 1, 32
    torch.manual_seed(3)
    model.model.layers[1].self_attn = type(model.model.layers[0].self_attn)(fewer, 1)
    assert [heads.query_heads for heads in layer_heads(model)] == [4, 2]
    expected = generate(model, tokens_of(batch=2))
    with headrace.attention.compress(model, plain_plan(model)):
        assert torch.equal(generate(model, tokens_of(batch=2)), expected)
    first = shared_plan(model_of("llama"), fixed=False).layers[0]
    second = plain_plan(model).layers[1]
    plan = AttentionPlan(layers=(first, replace(second, keys=StorageFormat.INT8)), element_bytes=4)
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        model(tokens_of(batch=2), cache=cache)
        assert cache.allocated_bytes == plan.cache_bytes(2, 23)


@torch.no_grad()
def test_layers_that_are_removed_or_replaced_are_noticed() -> None:
    """Heads were those of the first call: plans had layers that the model no longer has."""
    model = copy.deepcopy(model_of("llama"))
    plan = plain_plan(model)
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    assert len(layer_heads(model)) == 1
    with pytest.raises(AttentionError, match="the plan has 2 layers, LlamaForCausalLM 1"):
        headrace.attention.cache(model, plan)
    fewer = copy.deepcopy(model.config)
    fewer.num_attention_heads = fewer.num_key_value_heads = 2
    model.model.layers[0].self_attn = type(model.model.layers[0].self_attn)(fewer, 0)
    assert layer_heads(model)[0].query_heads == 2


@torch.no_grad()
@pytest.mark.parametrize(
    "tie",
    [
        lambda attention, first: setattr(attention, "k_proj", attention.q_proj),
        lambda attention, first: setattr(attention, "v_proj", attention.k_proj),
        lambda attention, first: setattr(attention, "q_proj", first.q_proj),
        lambda attention, first: setattr(attention.k_proj, "weight", attention.q_proj.weight),
    ],
    ids=["keys are queries", "values are keys", "layers share queries", "weights are shared"],
)
def test_tied_projections_are_multiplied_in_whole(tie: Callable[[Any, Any], None]) -> None:
    """Values that are keys had zeros for heads whose keys nothing reads; keys that are queries
    ended in an error."""
    model = copy.deepcopy(model_of("llama"))
    for layer in model.model.layers:
        tie(layer.self_attn, model.model.layers[0].self_attn)
    plan = shared_plan(model, fixed=True)
    tokens = tokens_of()
    with headrace.attention.compress(model, plan):
        alone = model(tokens).logits
    assert not any("forward" in vars(module) for module in model.modules())
    assert_close_to_shared(model, plan, tokens, alone)


def assert_close_to_shared(
    model: Any, plan: AttentionPlan, tokens: torch.Tensor, logits: torch.Tensor
) -> None:
    """Compare logits with those of heads that take their representatives' queries and keys."""

    def attention(
        module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any
    ) -> tuple[torch.Tensor, None]:
        del mask
        rows = list(plan.layers[module.layer_idx].representatives or ())
        out = torch.nn.functional.scaled_dot_product_attention(
            query[:, rows], key[:, rows], value, is_causal=True, scale=options["scaling"]
        )
        return out.transpose(1, 2), None

    with collecting(model, attention):
        torch.testing.assert_close(logits, model(tokens).logits, rtol=0, atol=2e-5)


@pytest.mark.parametrize("plan_of", [plain_plan, partial(shared_plan, fixed=True)])
@torch.no_grad()
def test_a_copy_of_a_compressed_model_generates_with_its_own_weights_or_not_at_all(
    plan_of: Callable[[nn.Module], AttentionPlan],
) -> None:
    """Its `generate` was that of the model that it is a copy of; by clusters it was a TypeError."""
    model = copy.deepcopy(model_of("llama"))
    plan = plan_of(model)
    changed = copy.deepcopy(model_of("llama"))
    for own in changed.parameters():
        own.mul_(-1.5)
    with headrace.attention.compress(changed, plan):
        expected = generate(changed, tokens_of()), changed(tokens_of()).logits
    with headrace.attention.compress(model, plan):
        before = model(tokens_of()).logits
        twin = copy.deepcopy(model)
        for own in twin.parameters():
            own.mul_(-1.5)
        assert torch.equal(generate(twin, tokens_of()), expected[0])
        assert torch.equal(twin(tokens_of()).logits, expected[1])
        assert torch.equal(model(tokens_of()).logits, before)
    with pytest.raises(AttentionError, match=r"within headrace\.attention\.compress"):
        generate(twin, tokens_of())
    with headrace.attention.compress(twin, plan):
        assert torch.equal(generate(twin, tokens_of()), expected[0])


@torch.no_grad()
def test_a_compressed_model_is_pickled_outside_its_context_alone() -> None:
    """AttributeError, of a local object that cannot be pickled."""
    model = copy.deepcopy(model_of("llama"))
    expected = model(tokens_of()).logits
    for plan in (plain_plan(model), shared_plan(model, fixed=True)):
        with headrace.attention.compress(model, plan):
            with pytest.raises(AttentionError, match=r"do so outside headrace\.attention\."):
                torch.save(model, io.BytesIO())
            with pytest.raises(AttentionError, match="or save its weights alone"):
                pickle.dumps(model)
    assert torch.equal(pickle.loads(pickle.dumps(model))(tokens_of()).logits, expected)
