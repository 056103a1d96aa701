"""Models of Transformers within `compress`: unchanged where nothing is shared, all paths alike."""

import copy
import gc
import io
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    AttentionInterface,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import headrace.attention
from headrace.attention import (
    AttentionError,
    AttentionPlan,
    CapacityError,
    LayerPlan,
    StorageFormat,
)
from headrace.attention.run.layer import SHARED
from tests.attention.models import MODELS, WORDS, model_of, plain_plan, shared_plan, with_bits
from tests.attention.reference import attention

TOKENS = 23


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def prompt(batch: int = 2, padding: int = 4, count: int = TOKENS) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(3, WORDS, (batch, count), generator=generator)
    mask = torch.ones_like(tokens)
    mask[0, :padding] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def generated(model: nn.Module, inputs: dict[str, torch.Tensor], **options: object) -> list:
    output = model.generate(**inputs, max_new_tokens=14, do_sample=False, **options)
    return output.tolist()


def stepwise(model: nn.Module, plan: AttentionPlan, inputs: dict, size: int) -> torch.Tensor:
    """Return the logits of a prompt that comes in parts."""
    cache = headrace.attention.cache(model, plan)
    tokens, mask = inputs["input_ids"], inputs["attention_mask"]
    parts = [
        model(
            input_ids=tokens[:, first : first + size],
            attention_mask=mask[:, : first + size],
            cache=cache,
        ).logits
        for first in range(0, tokens.shape[1], size)
    ]
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_that_shares_nothing_changes_nothing(name: str) -> None:
    model, inputs = model_of(name), prompt()
    plan = plain_plan(model)
    logits, greedy = model(**inputs).logits, generated(model, inputs)
    beams = generated(model, inputs, num_beams=3)
    with headrace.attention.compress(model, plan):
        torch.testing.assert_close(model(**inputs).logits, logits, rtol=0, atol=1e-5)
        assert generated(model, inputs) == greedy
        assert generated(model, inputs, num_beams=3) == beams
    assert torch.equal(model(**inputs).logits, logits)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_one_pass_is_as_parts_of_a_prompt(name: str, fixed: bool) -> None:
    model, inputs = model_of(name), prompt()
    plan = shared_plan(model, fixed=fixed)
    real = inputs["attention_mask"].bool()
    full = model(**inputs).logits
    with headrace.attention.compress(model, plan):
        whole = model(**inputs).logits
        for size in (1, 3, 5, 7):
            parts = stepwise(model, plan, inputs, size)
            torch.testing.assert_close(parts[real], whole[real], rtol=0, atol=2e-5)
    assert (whole - full)[real].abs().max() > 1e-3, "sharing heads changed nothing"


@pytest.mark.parametrize("fixed", [False, True])
def test_a_request_is_the_same_alone_and_beside_others(fixed: bool) -> None:
    model, inputs = model_of("llama"), prompt(batch=3)
    plan = shared_plan(model, fixed=fixed)
    with headrace.attention.compress(model, plan):
        together = generated(model, inputs)
        for index, padding in enumerate((4, 0, 0)):
            alone = {name: tensor[index : index + 1, padding:] for name, tensor in inputs.items()}
            assert generated(model, alone)[0] == together[index][padding:]
        # with padding after the shorter one
        right = {name: tensor.clone() for name, tensor in inputs.items()}
        right["attention_mask"][1, -6:] = 0
        logits = model(**right).logits[1, : TOKENS - 6]
        alone = {name: tensor[1:2, : TOKENS - 6] for name, tensor in inputs.items()}
        torch.testing.assert_close(logits, model(**alone).logits[0], rtol=0, atol=2e-5)


def test_short_prompts_share_from_their_fifth_token_on() -> None:
    model = model_of("llama")
    plan = shared_plan(model, fixed=False)
    tokens = prompt()["input_ids"][:, :2]
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        model(input_ids=tokens, cache=cache)
        layer = cache.layers[0].layer
        assert layer.representatives is None
        model(input_ids=tokens, cache=cache)
        model(input_ids=tokens[:, :1], cache=cache)
        assert layer.representatives is not None
        assert all(len(set(row)) == 2 for row in layer.representatives.tolist())


def test_keys_of_the_others_are_gone() -> None:
    model, inputs = model_of("llama"), prompt()
    caches = {}
    for name, plan in {"all": plain_plan(model), "half": shared_plan(model, fixed=False)}.items():
        with headrace.attention.compress(model, plan):
            caches[name] = headrace.attention.cache(model, plan)
            model(**inputs, cache=caches[name])
        assert caches[name].allocated_bytes == plan.cache_bytes(2, TOKENS)
    assert caches["half"].allocated_bytes == 0.75 * caches["all"].allocated_bytes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_the_first_tokens_have_the_range_of_float32(dtype: torch.dtype) -> None:
    """Products of 16 bits were rounded; beyond 65,504, as Qwen2 has them, they were NaN."""
    plan = shared_plan(model_of("llama"), fixed=False)
    generator = torch.Generator().manual_seed(3)
    query, keys, values = torch.randn(3, 1, 4, 5, 32, generator=generator).to(dtype)
    query[..., 0] = keys[..., 0] = 256
    layer = headrace.attention.cache(model_of("llama"), plan).layers[0].layer
    output = layer.attend(query, keys, values, scale=32**-0.5)
    parts = [part.double().numpy() for part in (query, keys, values)]
    expected = attention(*parts, np.arange(4)[None], scale=32**-0.5)
    torch.testing.assert_close(output.double(), torch.from_numpy(expected), rtol=0, atol=0.02)


def test_a_cluster_map_is_a_few_numbers_of_every_head() -> None:
    model = model_of("llama")
    plan = shared_plan(model, fixed=False)
    layer = headrace.attention.cache(model, plan).layers[0].layer
    heads, clusters, keys = (
        plan.layers[0].heads.query_heads,
        plan.layers[0].clusters,
        plan.layers[0].key_heads,
    )
    assert layer.map_bytes == 0, "no request, no map"
    query, key, value = (torch.zeros(3, heads, 7, plan.layers[0].heads.dim) for _ in range(3))
    layer.attend(query, key, value, scale=1.0)
    assert layer.map_bytes == 3 * 4 * (2 * heads + 2 * clusters + keys)
    layer.select(torch.tensor([1]))
    assert layer.map_bytes == 4 * (2 * heads + 2 * clusters + keys)


@pytest.mark.parametrize(
    ("keys", "values", "bound"),
    [
        (StorageFormat.INT8, StorageFormat.INT8, 0.2),
        (StorageFormat.INT4, StorageFormat.INT8, 2.0),
        (StorageFormat.INT4, StorageFormat.INT4, 2.0),
    ],
)
def test_fewer_bits_change_logits_within_a_bound(
    keys: StorageFormat, values: StorageFormat, bound: float
) -> None:
    model, inputs = model_of("llama-gqa"), prompt(count=100)
    plan = with_bits(plain_plan(model), keys, values)
    exact = model(**inputs).logits
    spread = exact.std()
    with headrace.attention.compress(model, plan):
        real = inputs["attention_mask"].bool()
        difference = (stepwise(model, plan, inputs, 1) - exact)[real].abs().max() / spread
    print(f"{keys.value} keys, {values.value} values: {difference:.3f} of the logits' deviation")
    assert 0 < difference < bound


def test_assisted_decoding_is_as_plain() -> None:
    model, assistant = model_of("llama"), model_of("llama-gqa")
    inputs = {name: tensor[1:] for name, tensor in prompt().items()}
    for plan in (plain_plan(model), shared_plan(model, fixed=False)):
        with headrace.attention.compress(model, plan):
            expected = generated(model, inputs)
            assert generated(model, inputs, assistant_model=assistant) == expected


def test_sampling_and_several_sequences() -> None:
    model, inputs = model_of("llama"), prompt()
    with headrace.attention.compress(model, shared_plan(model, fixed=False)):
        torch.manual_seed(0)
        output = model.generate(**inputs, do_sample=True, num_return_sequences=3, max_new_tokens=6)
    assert output.shape == (6, TOKENS + 6)


def test_a_cache_is_copied_saved_and_used_over_turns() -> None:
    model, inputs = model_of("llama"), prompt()
    plan = shared_plan(model, fixed=False)
    more = prompt()["input_ids"][:, :9]
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        model(**inputs, cache=cache)
        copied = copy.deepcopy(cache)
        file = io.BytesIO()
        torch.save(cache, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        mask = torch.cat([inputs["attention_mask"], torch.ones_like(more)], dim=1)
        logits = [
            model(input_ids=more, attention_mask=mask, cache=kept).logits
            for kept in (cache, copied, loaded)
        ]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
    assert "2 requests, 32 tokens" in repr(cache)


def test_a_full_cache_of_fixed_size_says_so() -> None:
    model, inputs = model_of("llama"), prompt()
    plan = plain_plan(model)
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan, max_tokens=TOKENS + 2)
        assert cache.get_max_length() == TOKENS + 2
        with pytest.raises(CapacityError, match="has room for 25 tokens"):
            generated(model, inputs, cache=cache)


def test_a_model_is_as_before_whatever_happens_inside() -> None:
    model, inputs = model_of("llama"), prompt()
    before = dict(vars(model)), model.config._attn_implementation, model(**inputs).logits
    for plan in (plain_plan(model), shared_plan(model, fixed=True)):
        with pytest.raises(IndexError), headrace.attention.compress(model, plan):
            model(input_ids=inputs["input_ids"] + WORDS)
        assert "generate" not in vars(model)
        assert not model._forward_pre_hooks
        assert not model.base_model._forward_pre_hooks
        assert model.config._attn_implementation == before[1]
        assert vars(model).keys() == before[0].keys()
        assert torch.equal(model(**inputs).logits, before[2])


def test_each_module_has_its_own_mode_afterwards_and_the_model_can_be_freed() -> None:
    """The whole model took the mode of its root; a registered function held it for ever."""
    model = LlamaForCausalLM(copy.deepcopy(model_of("llama").config)).train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    plan = plain_plan(model)
    with headrace.attention.compress(model, plan):
        pass
    assert [module.training for module in model.modules()] == modes
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("hidden_size", [32, 96])
def test_heads_that_kernels_do_not_read_use_torch(hidden_size: int) -> None:
    """Heads of 8 and 24 numbers: the kernels refused what the page says torch computes."""
    torch.manual_seed(0)
    config = copy.deepcopy(model_of("llama").config)
    config.hidden_size, config.head_dim = hidden_size, hidden_size // 4
    model, inputs = LlamaForCausalLM(config).eval(), prompt()
    expected = generated(model, inputs)
    plan = plain_plan(model)
    with headrace.attention.compress(model, plan):
        assert generated(model, inputs) == expected
    with headrace.attention.compress(
        model, with_bits(plan, StorageFormat.INT8, StorageFormat.INT8)
    ):
        assert len(generated(model, inputs)[0]) > TOKENS


def test_tokens_of_elsewhere_are_stored_where_membership_is_known() -> None:
    model = model_of("llama")
    plan = shared_plan(model, fixed=False)
    heads = plan.layers[0].heads
    query, keys, values = (torch.randn(2, heads.query_heads, 9, heads.dim) for _ in range(3))
    layer = headrace.attention.cache(model, plan).layers[0].layer
    with pytest.raises(AttentionError, match="has 0 tokens: its heads' membership comes with"):
        layer.extend(keys, values)
    attended = headrace.attention.cache(model, plan).layers[0].layer
    for cache in (layer, attended):
        cache.attend(query[:, :, :6], keys[:, :, :6], values[:, :, :6], scale=0.2)
    layer.extend(keys[:, :, 6:8], values[:, :, 6:8])
    attended.attend(query[:, :, 6:8], keys[:, :, 6:8], values[:, :, 6:8], scale=0.2)
    newest = [part[:, :, 8:] for part in (query, keys, values)]
    assert torch.equal(layer.attend(*newest, scale=0.2), attended.attend(*newest, scale=0.2))


def test_a_cache_tells_how_prompts_were_computed() -> None:
    model = model_of("llama")
    plan = shared_plan(model, fixed=True)
    tokens = torch.randint(3, WORDS, (1, 200), generator=torch.Generator().manual_seed(1))
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        model(input_ids=tokens, cache=cache)
        assert cache.prompt_paths == {SHARED: 2}
        model(input_ids=tokens[:, :3], cache=cache)
        assert cache.prompt_paths == {SHARED: 2}, "few queries are no prompt"
        short = headrace.attention.cache(model, plan)
        model(input_ids=tokens[:, :20], cache=short)
        assert short.prompt_paths == {"the prompt is short": 2}
        assert copy.deepcopy(short).prompt_paths == {}
    with headrace.attention.compress(model, plain_plan(model)):
        cache = headrace.attention.cache(model, plain_plan(model))
        model(input_ids=tokens, cache=cache)
        assert cache.prompt_paths == {}, "nothing is shared"


def test_a_full_cache_that_waits_for_membership_loses_nothing() -> None:
    """Its first tokens were changed before the error; all keys had room for the whole capacity."""
    model = model_of("llama")
    plan = shared_plan(model, fixed=False)
    tokens = prompt(padding=0)["input_ids"]
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan, max_tokens=1024)
        model(input_ids=tokens[:, :3], cache=cache)
        assert cache.allocated_bytes < plan.cache_bytes(2, 1024) / 2
        for _ in range(2):
            with pytest.raises(CapacityError, match="has room for 1024 tokens, holds 3"):
                model(input_ids=tokens.repeat(1, 50), cache=cache)
        logits = model(input_ids=tokens[:, 3:9], cache=cache).logits
        whole = model(input_ids=tokens[:, :9]).logits[:, 3:]
    torch.testing.assert_close(logits, whole, rtol=0, atol=2e-5)


def test_causality_holds() -> None:
    """Without a mask function of its own an implementation's queries see later tokens."""
    model, inputs = model_of("llama"), prompt(padding=0)
    changed = inputs["input_ids"].clone()
    changed[:, -1] = (changed[:, -1] + 1) % WORDS
    with headrace.attention.compress(model, shared_plan(model, fixed=False)):
        logits = [model(input_ids=tokens).logits for tokens in (inputs["input_ids"], changed)]
    assert torch.equal(logits[0][:, :-1], logits[1][:, :-1])
    assert not torch.equal(logits[0][:, -1], logits[1][:, -1])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(2, 2), "Linear is no model of Transformers"),
        (
            lambda: T5ForConditionalGeneration(
                T5Config(d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8, vocab_size=WORDS)
            ),
            "T5ForConditionalGeneration has cross attention: only decoders",
        ),
        (
            lambda: MistralForCausalLM(
                MistralConfig(
                    vocab_size=WORDS,
                    hidden_size=32,
                    intermediate_size=16,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    num_key_value_heads=2,
                    sliding_window=8,
                )
            ),
            "sliding_window: only plain scores are shared",
        ),
    ],
)
def test_models_that_are_not_served_are_refused_by_name(model, message: str) -> None:
    plan = plain_plan(model_of("llama"))
    with pytest.raises(AttentionError, match=message), headrace.attention.compress(model(), plan):
        pass


def test_another_models_plan_is_refused() -> None:
    llama, other = model_of("llama"), model_of("llama-gqa")
    with (
        pytest.raises(AttentionError, match="layer 0 of LlamaForCausalLM has 4 heads on 2 of 32"),
        headrace.attention.compress(other, plain_plan(llama)),
    ):
        pass
    plan = plain_plan(llama)
    digest = headrace.attention.model_digest(llama)
    torch.manual_seed(1)
    twin = LlamaForCausalLM(LlamaConfig(**llama.config.to_diff_dict() | {"use_cache": True}))
    named = AttentionPlan(layers=plan.layers, model=digest, element_bytes=4)
    headrace.attention.cache(llama, named)
    with pytest.raises(AttentionError, match="other weights of this architecture"):
        headrace.attention.cache(twin, named)


def test_caches_and_gradients_that_are_not_served_are_refused() -> None:
    model, inputs = model_of("llama"), prompt()
    with headrace.attention.compress(model, plain_plan(model)):
        with pytest.raises(AttentionError, match="the cache is a DynamicCache: within compress"):
            model(**inputs, cache=DynamicCache())
        with pytest.raises(AttentionError, match="cache_implementation is 'static'"):
            generated(model, inputs, cache_implementation="static")
        with torch.enable_grad(), pytest.raises(AttentionError, match=r"use torch\.no_grad"):
            model(**inputs)


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_reads_all_weights_but_embeddings_that_are_looked_up(tied: bool) -> None:
    sizes = {"vocab_size": 90, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=2, tie_word_embeddings=tied)
    model = LlamaForCausalLM(config).bfloat16()
    weights = headrace.attention.model_weights(model)
    layer = 4 * 32 * 32 + 3 * 32 * 40 + 2 * 32
    assert weights.read_numbers == 2 * layer + 32 + 90 * 32
    assert weights.read_bytes == 2 * weights.read_numbers
    assert weights.hidden_size == 32


def test_heads_may_differ_by_layer() -> None:
    """Layers of 4, 2 and 1 clusters, one of them without a plan of its own."""
    model, inputs = model_of("llama"), prompt()
    first, second = plain_plan(model).layers
    one = LayerPlan(heads=second.heads, clusters=1, key_heads=1)
    plan = AttentionPlan(layers=(first, one), element_bytes=4)
    with headrace.attention.compress(model, plan):
        whole = model(**inputs).logits
        parts = stepwise(model, plan, inputs, 3)
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(parts[real], whole[real], rtol=0, atol=2e-5)


def test_planted_clusters_are_detected() -> None:
    """Heads whose queries and keys are copies of others': membership is exact, logits equal."""
    torch.manual_seed(2)
    model = LlamaForCausalLM(copy.deepcopy(model_of("llama").config)).eval()
    copies = [0, 1, 0, 1]
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.weight.data.mul_(8)
            rows = projection.weight.data.unflatten(0, (4, -1))
            projection.weight.data = rows[copies].flatten(0, 1).contiguous()
    inputs = prompt(padding=0)
    full = model(**inputs).logits
    plan = shared_plan(model, fixed=False)
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        logits = model(**inputs, cache=cache).logits
    for layer in cache.layers:
        rows = np.array(layer.layer.representatives)
        assert (rows[:, :2] == rows[:, 2:]).all()
        assert (rows[:, 0] != rows[:, 1]).all()
    torch.testing.assert_close(logits, full, rtol=0, atol=1e-5)


def test_the_interface_is_registered_once_and_stays_out_of_the_way() -> None:
    model = model_of("llama")
    with headrace.attention.compress(model, plain_plan(model)):
        pass
    assert "headrace" in AttentionInterface()
    assert model.config._attn_implementation != "headrace"
