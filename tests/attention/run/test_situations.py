"""Uses of models: chats, shared prefixes, pipelines, streams; each as without compression."""

import copy
import io
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import (
    AfmoeConfig,
    AfmoeForCausalLM,
    AutoTokenizer,
    CLIPVisionConfig,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    TextIteratorStreamer,
    pipeline,
)

import headrace.attention
from headrace.attention import (
    AttentionAdaptation,
    AttentionError,
    CapacityError,
    StorageFormat,
)
from headrace.attention.cli.models import check_positions
from headrace.attention.measure.likeness import measure_likeness
from headrace.attention.run.rows import RowFormat, StoredRows
from tests.attention.models import (
    WORDS,
    model_of,
    plain_plan,
    shared_plan,
    with_bits,
    with_copied_heads,
)


def tokens_of(count: int = 23, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, WORDS, (batch, count), generator=generator)


def generate(model: Any, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
    mask = torch.ones_like(tokens)
    return model.generate(tokens, attention_mask=mask, max_new_tokens=6, do_sample=False, **options)


def chat(model: Any, cache: Any) -> list[torch.Tensor]:
    """Return three turns, each of which begins with all turns before."""
    text = tokens_of()
    turns: list[torch.Tensor] = []
    for turn in range(3):
        text = torch.cat([text, tokens_of(4 + turn)], dim=1)
        text = generate(model, text, cache=cache)
        turns.append(text)
    return turns


def test_a_chat_over_several_turns_keeps_its_cache() -> None:
    model = model_of("llama-gqa")
    plan = plain_plan(model)
    expected = chat(model, DynamicCache())
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        turns = chat(model, cache)
        assert cache.get_seq_length() == turns[-1].shape[1] - 1
    assert all(map(torch.equal, turns, expected))
    shared = shared_plan(model, fixed=False)
    with headrace.attention.compress(model, shared):
        kept = chat(model, headrace.attention.cache(model, shared))[-1]
        anew = generate(model, kept[:, :-6])
    assert torch.equal(kept, anew), "turns over one cache differ from one prompt"


@torch.no_grad()
def test_a_prefix_is_read_once_for_many_continuations() -> None:
    model = model_of("llama")
    plan = with_bits(shared_plan(model, fixed=False), StorageFormat.INT8, StorageFormat.INT8)
    prefix = tokens_of()
    prompts = torch.cat([prefix.repeat(3, 1), tokens_of(4, batch=3)], dim=1)
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        model(prefix, cache=cache)
        single = [generate(model, prompt[None], cache=copy.deepcopy(cache)) for prompt in prompts]
        assert cache.get_seq_length() == prefix.shape[1]
        cache.batch_repeat_interleave(3)
        together = generate(model, prompts, cache=cache)
    assert torch.equal(torch.cat(single), together)


@pytest.mark.parametrize(
    "bits",
    [StorageFormat.MODEL, StorageFormat.INT8, StorageFormat.INT4],
    ids=lambda bits: bits.value,
)
@pytest.mark.parametrize("count", [3, 70])
def test_a_prefix_that_was_read_in_inference_mode_goes_on_outside_of_it(
    bits: StorageFormat, count: int
) -> None:
    """Its tensors could not be written: RuntimeError, "Inplace update to inference tensor"."""
    model = model_of("llama")
    prompt = torch.cat([tokens_of(count), tokens_of(4)], dim=1)
    for plan in (plain_plan(model), shared_plan(model, fixed=False)):
        with headrace.attention.compress(model, with_bits(plan, bits, bits)):
            texts: list[torch.Tensor] = []
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    cache = headrace.attention.cache(model, with_bits(plan, bits, bits))
                    model(prompt[:, :count], cache=cache)
                    cache.batch_repeat_interleave(2)
                texts.append(generate(model, prompt.repeat(2, 1), cache=cache))
        assert torch.equal(*texts)


@pytest.mark.parametrize("count", [3, 70])
def test_a_prefix_is_copied_and_read_from_a_file_in_inference_mode(count: int) -> None:
    """RuntimeError, "Inplace update to inference tensor", as the copies' tensors were of it."""
    model = model_of("llama")
    bits = StorageFormat.INT4
    plan = with_bits(shared_plan(model, fixed=False), bits, bits)
    prompt = torch.cat([tokens_of(count), tokens_of(4)], dim=1)
    with headrace.attention.compress(model, plan):
        for mode in (torch.no_grad, torch.inference_mode):
            with torch.inference_mode():
                cache = headrace.attention.cache(model, plan)
                model(prompt[:, :count], cache=cache)
                file = io.BytesIO()
                torch.save(cache, file)
                file.seek(0)
                copies = [copy.deepcopy(cache), torch.load(file, weights_only=False)]
            with mode():
                texts = [generate(model, prompt, cache=prefix) for prefix in (cache, *copies)]
            assert all(torch.equal(text, texts[0]) for text in texts)


@torch.no_grad()
@pytest.mark.parametrize("before", [0, 3])
def test_a_cache_is_as_before_a_call_for_which_there_was_no_memory(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on with the clusters of the text that had failed: other logits, and no error."""
    model = model_of("llama")
    plan = shared_plan(model, fixed=False)
    tokens = tokens_of(40)

    def allocate(*_: Any, **__: Any) -> Any:
        raise MemoryError

    with headrace.attention.compress(model, plan):
        caches = [headrace.attention.cache(model, plan, max_tokens=64) for _ in range(2)]
        for cache in caches:
            if before:
                model(tokens[:, :before], cache=cache)
        with monkeypatch.context() as patch:
            patch.setattr(RowFormat, "allocate", allocate)
            with pytest.raises(MemoryError):
                model(tokens[:, 20:30], cache=caches[0])
        logits = [model(tokens[:, before:20], cache=cache).logits for cache in caches]
    assert torch.equal(*logits)


@torch.no_grad()
def test_a_cache_that_stored_nothing_takes_another_batch() -> None:
    model = model_of("llama")
    plan = shared_plan(model, fixed=False)
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        everything = torch.ones(1, 1, 8, 8, dtype=torch.bool)
        with pytest.raises(AttentionError, match="the mask is more than causal"):
            model(tokens_of(8), attention_mask=everything, cache=cache)
        logits = model(tokens_of(8, batch=2), cache=cache).logits
        assert torch.equal(logits, model(tokens_of(8, batch=2)).logits)


@torch.no_grad()
@pytest.mark.parametrize("bits", [StorageFormat.MODEL, StorageFormat.INT8])
def test_autocast_has_the_numbers_of_the_stock_model(bits: StorageFormat) -> None:
    """Rotated queries and keys are of float32 there, values of bfloat16: RuntimeError."""
    model = with_copied_heads()
    tokens = tokens_of()
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(tokens).logits
    for plan in (
        plain_plan(model),
        shared_plan(model, fixed=False),
        shared_plan(model, fixed=True),
    ):
        plan = with_bits(plan, bits, bits)
        for begins_in_it in (True, False):
            adaptation = AttentionAdaptation(plan, every=1)
            with headrace.attention.compress(model, adaptation):
                cache = headrace.attention.cache(model, adaptation)
                logits: list[torch.Tensor] = []
                for part in tokens.split([4, 6, 1, 12], dim=1):
                    enabled = begins_in_it or bool(logits)
                    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                        logits.append(model(part, cache=cache).logits.float())
            torch.testing.assert_close(torch.cat(logits, 1), expected.float(), rtol=0.05, atol=0.02)


class Adapted(nn.Module):
    """A model within another module, as PEFT has it: what it lacks is the model's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


@torch.no_grad()
def test_another_model_is_refused_the_cache_of_a_compressed_one() -> None:
    """While any model was compressed, another one read the newest keys alone: wrong logits."""
    model: Any = model_of("llama")
    other, plan, tokens = copy.deepcopy(model), plain_plan(model), tokens_of(6)
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        for implementation in ("sdpa", "eager"):
            other.set_attn_implementation(implementation)
            with pytest.raises(AttentionError, match=r"the model that .* was given"):
                other(input_ids=tokens, cache=cache)
        logits = model(input_ids=tokens, cache=cache).logits
        assert torch.allclose(logits, other(input_ids=tokens).logits, atol=1e-4)


@torch.no_grad()
def test_a_model_within_an_adapter_begins_with_a_cache() -> None:
    """A call had an error that says to call the model itself; `generate`, one of an attribute that
    PEFT's class of no task does not have itself."""
    model = Adapted(Adapted(copy.deepcopy(model_of("llama-gqa"))))
    expected, text = model(tokens_of()).logits, generate(model, tokens_of())
    with headrace.attention.compress(model, plain_plan(model)):
        assert torch.equal(model(tokens_of()).logits, expected)
        cache = headrace.attention.cache(model, plain_plan(model))
        for options in ({}, {"cache": cache}):
            assert torch.equal(generate(model, tokens_of(), **options), text)
        assert cache.get_seq_length() == text.shape[1] - 1
        with pytest.raises(AttentionError, match="the cache is a DynamicCache"):
            model(tokens_of(), cache=DynamicCache())
    assert torch.equal(model(tokens_of()).logits, expected)


@torch.no_grad()
def test_another_model_of_the_same_config_is_told_of_it() -> None:
    """It computes attention as the compressed one; the error was about gradient checkpointing."""
    model: Any = copy.deepcopy(model_of("llama"))
    other = type(model)(model.config).eval()
    with (
        headrace.attention.compress(model, plain_plan(model)),
        pytest.raises(AttentionError, match="shares its config with a compressed one"),
    ):
        other(tokens_of(6))
    assert other(tokens_of(6)).logits.shape == (1, 6, WORDS)


@torch.no_grad()
@pytest.mark.parametrize("before", [0, 20])
def test_a_cache_whose_last_call_was_interrupted_is_refused(before: int) -> None:
    """It went on without a token in its later layers: other logits, and no error."""
    model: Any = copy.deepcopy(model_of("llama"))
    plan = plain_plan(model)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        if before:
            model(tokens_of(before), cache=cache)
        interrupting = model.model.layers[1].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(tokens_of(3), cache=cache)
        interrupting.remove()
        text = tokens_of(before + 6)
        refusal = f"has {before + 3} tokens in some layers and {before} in others: .* new cache"
        with pytest.raises(AttentionError, match=refusal):
            generate(model, text, cache=cache)
        cache.reset()
        assert torch.equal(generate(model, text, cache=cache), generate(model, text))
        # leaves the last layer's cache empty, on purpose
        assert generate(model, text, assistant_early_exit=1).shape == (1, before + 12)


@torch.no_grad()
@pytest.mark.parametrize("parts", [0, 1, 2, 3])
def test_a_cache_whose_selection_was_interrupted_is_as_before_or_refused(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its layers, or keys of one, were of other requests: other logits, and no error."""
    model: Any = model_of("llama")
    plan = plain_plan(model)
    text = tokens_of(20, batch=2)
    selected: list[StoredRows] = []

    def interrupted(part: StoredRows, requests: torch.Tensor) -> StoredRows:
        if len(selected) == parts:
            raise KeyboardInterrupt
        selected.append(part)
        return select(part, requests)

    select = StoredRows.select
    with headrace.attention.compress(model, plan):
        caches = [headrace.attention.cache(model, plan) for _ in range(2)]
        for cache in caches:
            model(text, cache=cache)
        with monkeypatch.context() as patch:
            patch.setattr(StoredRows, "select", interrupted)
            with pytest.raises(KeyboardInterrupt):
                caches[0].reorder_cache(torch.tensor([1, 0]))
        if parts >= 2:  # the first layer's keys and values
            with pytest.raises(AttentionError, match=r"selection .* interrupted; .* new cache"):
                model(text, cache=caches[0])
            for cache in caches:
                cache.reset()
        logits = [model(text, cache=cache).logits for cache in caches]
    assert torch.equal(*logits)


def test_generating_twice_begins_twice() -> None:
    model = model_of("llama")
    with headrace.attention.compress(model, shared_plan(model, fixed=False)):
        assert torch.equal(generate(model, tokens_of()), generate(model, tokens_of()))
        with torch.no_grad(), pytest.raises(IndexError):
            model(tokens_of() + WORDS)
        assert generate(model, tokens_of()).shape == (1, 29)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_pipelines_made_before_or_within_the_context(folder: Path) -> None:
    model = model_of("llama")
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    prompts = ["the value of an object", "the"]

    def texts(generator: Any) -> list[str]:
        results = generator(prompts, max_new_tokens=5, do_sample=False, batch_size=2)
        return [result[0]["generated_text"] for result in results]

    before = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    expected = texts(before)
    with headrace.attention.compress(model, plain_plan(model)):
        assert texts(before) == expected
        within = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
        assert texts(within) == expected
    assert texts(within) == expected
    with headrace.attention.compress(model, shared_plan(model, fixed=True)):
        assert texts(before) != expected


def test_streams_embeddings_and_looked_up_prompts(folder: Path) -> None:
    model = model_of("llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokens_of()
    plan = shared_plan(model, fixed=False)
    with headrace.attention.compress(model, plan):
        expected = generate(model, tokens)
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
        thread = threading.Thread(
            target=generate, args=(model, tokens), kwargs={"streamer": streamer}
        )
        thread.start()
        streamed = "".join(streamer)
        thread.join(60)
        assert streamed == tokenizer.decode(expected[0, tokens.shape[1] :])
        embeddings = model.get_input_embeddings()(tokens)
        by_embeddings = model.generate(
            inputs_embeds=embeddings,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=6,
            do_sample=False,
        )
        assert torch.equal(by_embeddings, expected[:, tokens.shape[1] :])
        assert torch.equal(generate(model, tokens, prompt_lookup_num_tokens=3), expected)


def model_of_images() -> Any:
    """Return a decoder beside an encoder of images."""
    torch.manual_seed(0)
    text = copy.deepcopy(model_of("llama-gqa").config)
    vision = {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    return LlavaForConditionalGeneration(
        LlavaConfig(
            text_config=text,
            vision_config=CLIPVisionConfig(hidden_size=32, intermediate_size=32, **vision),
            image_token_index=WORDS - 1,
            image_seq_length=4,
        )
    ).eval()


def test_positions_of_a_model_of_images_are_its_texts() -> None:
    """It had no limit: longer samples were measured, and contexts of tasks were not shortened."""
    with pytest.raises(AttentionError, match="2049 tokens in a row, the model has positions for 2"):
        check_positions(model_of_images(), 2049, "--sample-tokens")


@torch.no_grad()
def test_an_encoder_of_images_keeps_its_attention() -> None:
    """It was computed as the decoder's: an error about gradient checkpointing."""
    model = model_of_images()
    images = torch.randn(1, 3, 16, 16)
    tokens = tokens_of(12)
    tokens[0, 1:5] = WORDS - 1
    inputs = {"input_ids": tokens, "pixel_values": images}
    expected = model(**inputs).logits
    with headrace.attention.compress(model, plain_plan(model)):
        torch.testing.assert_close(model(**inputs).logits, expected)
    with headrace.attention.compress(model, shared_plan(model, fixed=False)):
        assert not torch.allclose(model(**inputs).logits, expected)
    assert torch.equal(model(**inputs).logits, expected)


@torch.no_grad()
def test_a_second_decoder_keeps_its_attention() -> None:
    class TwoDecoders(LlamaForCausalLM):
        """A decoder within whose steps another one decodes, as in models of speech."""

        def __init__(self, config: LlamaConfig) -> None:
            super().__init__(config)
            self.depth = LlamaModel(copy.deepcopy(config))

    torch.manual_seed(0)
    model = TwoDecoders(copy.deepcopy(model_of("llama").config)).eval()
    plan, tokens = shared_plan(model, fixed=True), tokens_of(9)
    expected, plain = model.depth(tokens, use_cache=True), model(tokens).logits
    with headrace.attention.compress(model, plan):
        outputs, shared = model.depth(tokens, use_cache=True), model(tokens).logits
    assert torch.equal(outputs.last_hidden_state, expected.last_hidden_state)
    assert type(outputs.past_key_values) is DynamicCache
    assert not torch.equal(shared, plain)


@torch.no_grad()
def test_a_call_may_pass_no_cache_by_place() -> None:
    """TypeError: it had a cache by name, too."""
    model = model_of("llama")
    expected = model(tokens_of(), None, None, None).logits
    with headrace.attention.compress(model, plain_plan(model)):
        torch.testing.assert_close(model(tokens_of(), None, None, None).logits, expected)


def test_more_new_tokens_than_a_fixed_cache_has_room_for_are_refused_before_the_first() -> None:
    """The error came with the token that had no room: those before it were lost."""
    model = model_of("llama")
    plan = plain_plan(model)
    embeddings = model.get_input_embeddings()(tokens_of()).detach()
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan, max_tokens=27)
        for call in (
            lambda: generate(model, tokens_of(), cache=cache),
            lambda: model.generate(tokens_of(), max_length=29, cache=cache),
            lambda: model.generate(inputs_embeds=embeddings, max_new_tokens=6, cache=cache),
        ):
            with pytest.raises(CapacityError, match="has room for 27 .* has 23, and up to 6 are"):
                call()
        with pytest.raises(CapacityError, match="has 23, and up to 20 are"):  # where none says
            model.generate(tokens_of(), cache=cache)
        assert cache.get_seq_length() == 0
        # what a text begins with, where there is none
        with pytest.raises(CapacityError, match="has room for 27 .* has 1, and up to 28 are"):
            model.generate(max_new_tokens=28, cache=cache)
        # proposals go beyond the last token
        with pytest.raises(CapacityError, match="up to 4 are to follow .7 of .* max_tokens of 32"):
            model.generate(tokens_of(), max_new_tokens=4, prompt_lookup_num_tokens=7, cache=cache)
        cache = headrace.attention.cache(model, plan, max_tokens=28)
        assert generate(model, tokens_of(), cache=cache).shape == (1, 29)
        # the next turn's tokens alone, with a mask of all; only a whole text was counted
        mask = torch.ones(1, 29 + 4, dtype=torch.int64)
        cache = headrace.attention.cache(model, plan, max_tokens=37)
        generate(model, tokens_of(), cache=cache)
        with pytest.raises(CapacityError, match="has room for 37 .* has 33, and up to 6 are .* 38"):
            model.generate(tokens_of(5), attention_mask=mask, max_new_tokens=6, cache=cache)
        assert cache.get_seq_length() == 28
    short = copy.deepcopy(model)
    short.config.max_position_embeddings = 25
    with headrace.attention.compress(short, plan):
        cache = headrace.attention.cache(short, plan, max_tokens=24)
        mask = torch.ones_like(tokens_of())
        with pytest.warns(UserWarning, match="max_length"):
            text = short.generate(tokens_of(), attention_mask=mask, cache=cache)
        assert text.shape == (1, 25)


def test_a_longer_prompt_than_a_fixed_cache_holds_is_refused_at_once() -> None:
    model = model_of("llama")
    plan = plain_plan(model)
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan, max_tokens=20)
        with pytest.raises(AttentionError, match="has room for 20 tokens, holds 0, and 23 more"):
            generate(model, tokens_of(), cache=cache)
        assert cache.get_seq_length() == 0


def test_an_assistant_with_another_tokenizer_proposes_the_last_token_too(folder: Path) -> None:
    """The error came with the last tokens: those before them were lost."""
    model = model_of("llama")
    plan = plain_plan(model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = copy.deepcopy(model.config)
    config.vocab_size = WORDS + 1  # of as many words Transformers takes tokenizers to be the same
    options = {
        "assistant_model": LlamaForCausalLM(config).eval(),
        "tokenizer": tokenizer,
        "assistant_tokenizer": tokenizer,
    }
    expected = generate(model, tokens_of())
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan, max_tokens=28)
        with pytest.raises(CapacityError, match=r"the last one, too.: .* max_tokens of 29,"):
            generate(model, tokens_of(), cache=cache, **options)
        cache = headrace.attention.cache(model, plan, max_tokens=29)
        assert torch.equal(generate(model, tokens_of(), cache=cache, **options), expected)


@torch.no_grad()
@pytest.mark.parametrize("places", [[2, 0], [True, False, True], slice(1, 3), torch.tensor([1])])
def test_requests_are_selected_as_in_caches_of_transformers(places: Any) -> None:
    """Of a list it was an AttributeError, of a cache without tokens an IndexError."""
    model = model_of("llama")
    plan = plain_plan(model)
    text = tokens_of(12, batch=3)
    expected = model(text).logits[places, 8:]
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        cache.batch_select_indices(places)
        model(text[:, :8], cache=cache)
        cache.batch_select_indices(places)
        torch.testing.assert_close(model(text[places, 8:], cache=cache).logits, expected)


@torch.no_grad()
def test_a_cache_tells_whether_it_has_tokens() -> None:
    """It had none, whatever it held: models that ask took every call for the first of a text."""
    model = model_of("llama")
    plan = plain_plan(model)
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        assert not cache.is_initialized
        model(tokens_of(), cache=cache)
        assert cache.is_initialized
        cache.reset()
        assert not cache.is_initialized


@torch.no_grad()
def test_a_part_may_have_a_configuration_of_another_kind() -> None:
    """AttributeError, as of a model whose products torchao quantizes in training."""
    model = copy.deepcopy(model_of("llama"))
    expected = generate(model, tokens_of())
    model.model.layers[0].mlp.config = {"bits": 8}
    with headrace.attention.compress(model, plain_plan(model)):
        assert torch.equal(generate(model, tokens_of()), expected)
    assert torch.equal(generate(model, tokens_of()), expected)


def afmoe() -> Any:
    """Return a model that passes its mask by name, and views what attention returns."""
    torch.manual_seed(0)
    config = AfmoeConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_dense_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        layer_types=["full_attention"] * 2,
        pad_token_id=0,
    )
    return AfmoeForCausalLM(config).eval()


@torch.no_grad()
def test_a_model_may_pass_its_mask_by_name() -> None:
    """TypeError: a positional argument was missing."""
    model = afmoe()
    expected = generate(model, tokens_of())
    measured = measure_likeness(model, tokens_of(20, batch=2), text="", progress=lambda *_: None)
    assert [layer.heads.query_heads for layer in measured.layers] == [4, 4]
    with headrace.attention.compress(model, plain_plan(model)):
        assert torch.equal(generate(model, tokens_of()), expected)
    with headrace.attention.compress(model, shared_plan(model, fixed=True)):
        assert "forward" in vars(model.model.layers[0].self_attn.k_proj)
        assert generate(model, tokens_of()).shape == expected.shape


@torch.no_grad()
def test_a_model_may_view_the_attention_of_any_kernel() -> None:
    """RuntimeError: PyTorch's plain products have the heads before the tokens."""
    model = afmoe()
    with headrace.attention.compress(model, plain_plan(model)):
        expected = model(tokens_of()).logits
        with sdpa_kernel(SDPBackend.MATH):
            torch.testing.assert_close(model(tokens_of()).logits, expected)
