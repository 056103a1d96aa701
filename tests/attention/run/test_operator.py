"""Steps of decoding under `torch.compile`: one graph for all lengths, equal to uncompiled steps."""

import copy

import pytest
import torch
from torch._dynamo.utils import counters

import headrace.attention
from headrace.attention import AttentionError, AttentionPlan, CapacityError, StorageFormat
from headrace.attention.run.cache import CompressedCache
from tests.attention.models import WORDS, model_of, plain_plan, shared_plan, with_bits

SAMPLED = pytest.mark.sampled(2)

PROMPT, TOKENS, ROOM = 3, 12, 24


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad():
        yield


def tokens_of(batch: int = 2, count: int = TOKENS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(3, WORDS, (batch, count), generator=generator)


def steps(model, step, tokens: torch.Tensor, cache: CompressedCache) -> torch.Tensor:
    """Return the logits of a prompt by the model, and of every other token by a step."""
    parts = [model(input_ids=tokens[:, :PROMPT], cache=cache).logits]
    for first in range(PROMPT, tokens.shape[1]):
        parts.append(step(input_ids=tokens[:, first : first + 1].contiguous(), cache=cache).logits)
    return torch.cat(parts, dim=1)


def compare(name: str, plan: AttentionPlan, backend: str) -> None:
    """Compare steps of two caches by one compiled graph with those of the model itself."""
    model, tokens = model_of(name), tokens_of()
    with headrace.attention.compress(model, plan):
        expected = steps(model, model, tokens, headrace.attention.cache(model, plan))
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        for _ in range(2):
            cache = headrace.attention.cache(model, plan, max_tokens=ROOM)
            logits = steps(model, compiled, tokens, cache)
            torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)
    assert counters["stats"]["unique_graphs"] == 1, "the step was compiled again"
    assert not counters["graph_break"]


@SAMPLED
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "opt", "qwen3"])
def test_one_graph_serves_all_lengths_and_caches(name: str, fixed: bool) -> None:
    compare(name, shared_plan(model_of(name), fixed=fixed), backend="eager")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_generated_code_computes_the_same(name: str) -> None:
    """Positions of later layers were wrong: generated code read the length of the first layer's
    cache again after that layer's attention had increased it.
    """
    compare(name, shared_plan(model_of(name), fixed=False), backend="inductor")


@SAMPLED
def test_a_compiled_step_follows_what_happens_to_its_cache() -> None:
    model, tokens = model_of("llama"), tokens_of()
    plan = with_bits(plain_plan(model), StorageFormat.INT8, StorageFormat.INT8)
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan, max_tokens=ROOM)
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        logits = steps(model, compiled, tokens, cache)
        newest = tokens[:, -1:].contiguous()
        copied = copy.deepcopy(cache)
        for other in (cache, copied):
            other.crop(-1)
            again = compiled(input_ids=newest, cache=other).logits
            assert torch.equal(again, logits[:, -1:])
            assert other.get_seq_length() == TOKENS
        cache.reorder_cache(torch.tensor([1, 0]))
        cache.crop(-1)
        again = compiled(input_ids=newest.flip(0), cache=cache).logits
        assert torch.equal(again, logits.flip(0)[:, -1:])
        cache.reset()
        assert torch.equal(steps(model, compiled, tokens, cache), logits)
    assert counters["stats"]["unique_graphs"] == 1


@SAMPLED
def test_a_compiled_step_refuses_a_full_cache_and_one_that_grows() -> None:
    model, tokens = model_of("llama"), tokens_of()
    plan = shared_plan(model, fixed=True)
    with headrace.attention.compress(model, plan):
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        cache = headrace.attention.cache(model, plan, max_tokens=TOKENS)
        steps(model, compiled, tokens, cache)
        with pytest.raises(CapacityError, match="has room for 12 tokens, holds 12, and 1 more"):
            compiled(input_ids=tokens[:, :1], cache=cache)
        assert cache.get_seq_length() == TOKENS
        growing = headrace.attention.cache(model, plan)
        with pytest.raises(Exception, match="a compiled model needs a cache of fixed size"):
            compiled(input_ids=tokens[:, :1], cache=growing)
        partly = torch.compile(model, backend="eager")
        expected = model(input_ids=tokens, cache=headrace.attention.cache(model, plan)).logits
        logits = partly(input_ids=tokens, cache=growing).logits
        torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)


def test_compiled_steps_have_no_gradients() -> None:
    model, tokens = model_of("llama"), tokens_of()
    plan = plain_plan(model)
    with headrace.attention.compress(model, plan), torch.enable_grad():
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        cache = headrace.attention.cache(model, plan, max_tokens=ROOM)
        with pytest.raises((AttentionError, RuntimeError), match="has no gradients"):
            compiled(input_ids=tokens, cache=cache)


def test_a_model_that_is_compiled_before_has_its_heads_read_uncompiled() -> None:
    """Passes that read them were compiled: minutes, and with `fullgraph` an error of Dynamo."""
    model, tokens = copy.deepcopy(model_of("llama")), tokens_of()
    plan = shared_plan(model, fixed=True)
    with headrace.attention.compress(model, plan):
        expected = steps(model, model, tokens, headrace.attention.cache(model, plan))
    model = copy.deepcopy(model_of("llama"))
    model.forward = torch.compile(model.forward, fullgraph=True, backend="eager")
    with headrace.attention.compress(model, plan):
        assert counters["stats"]["unique_graphs"] == 0
        logits = steps(model, model, tokens, headrace.attention.cache(model, plan, max_tokens=ROOM))
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)
