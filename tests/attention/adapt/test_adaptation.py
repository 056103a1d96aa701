"""Adaptation of a model whose heads agree on prose and not on code, and observation by itself."""

import copy
import io
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import headrace.attention
from headrace.attention import (
    AttentionAdaptation,
    AttentionError,
    AttentionPlan,
    ClusterLimits,
    CompressedCache,
    LayerPlan,
    StorageFormat,
    layer_heads,
)
from headrace.attention.adapt.observe import LEAST_TOKENS, measured_output_error, observe
from tests.attention.models import MODELS, model_of, plain_plan, shared_plan, with_bits
from tests.forked import status_of_child
from tests.waiting import HANG_S

WORDS, HALF = 97, 48
PROSE, CODE = (3, HALF), (HALF, WORDS)
"""Words of two domains."""


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """Heads 2 and 3 have nearly the queries and keys of heads 0 and 1 for prose, others for code.

    Prose is embedded in one half of the hidden dimensions and code in the other, and layers write
    to that of prose alone.
    """
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight[PROSE[0] : PROSE[1], 64:] = 0
        model.model.embed_tokens.weight[CODE[0] : CODE[1], :64] = 0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[64:] = 0
            layer.mlp.down_proj.weight[64:] = 0
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                projection.weight.mul_(8)
                rows = projection.weight.unflatten(0, (4, 32))
                rows[2:, :, :64] = rows[:2, :, :64] + 0.02 * torch.randn(2, 32, 64)
    return model


def plan_of(model: nn.Module, *representatives: tuple[int, ...]) -> AttentionPlan:
    """Return a plan of the first representatives, with the others as alternatives."""
    plans = [
        AttentionPlan(
            layers=tuple(
                LayerPlan(
                    heads=heads,
                    clusters=len(set(row)),
                    key_heads=len(set(row)),
                    representatives=row,
                )
                for heads in layer_heads(model)
            ),
            element_bytes=4,
        )
        for row in representatives
    ]
    return replace(plans[0], alternatives=tuple(plans[1:]))


def sample(domain: tuple[int, int], seed: int, count: int = 120) -> torch.Tensor:
    return torch.randint(*domain, (1, count), generator=torch.Generator().manual_seed(seed))


def planned(model: nn.Module) -> AttentionPlan:
    plan = plan_of(model, (0, 1, 0, 1), (0, 1, 2, 1), (0, 1, 2, 3))
    samples = torch.cat([sample(PROSE, seed) for seed in range(100, 104)])
    error = measured_output_error(model, plan, samples, lambda _text, _share: None)
    assert error is not None
    assert 0 < error < 0.05
    return replace(plan, output_error=error)


def generate(model: nn.Module, tokens: torch.Tensor, **options: object) -> torch.Tensor:
    return model.generate(tokens, max_new_tokens=4, do_sample=False, **options)


def events(adaptation: AttentionAdaptation, name: str) -> list[dict]:
    return [event for event in adaptation.records.events if event["event"] == name]


def test_new_caches_get_more_clusters_where_heads_stop_agreeing(
    model: LlamaForCausalLM, tmp_path: Path
) -> None:
    plan = planned(model)
    log = tmp_path / "events"
    # tokens that the model generates are of both domains
    limits = ClusterLimits(threshold=2)
    adaptation = AttentionAdaptation(plan, every=1, limits=limits, log_path=log)
    with headrace.attention.compress(model, adaptation):
        for seed in range(10):
            generate(model, sample(PROSE, seed))
        before = headrace.attention.cache(model, adaptation)
        model(input_ids=sample(PROSE, 20), cache=before)
        assert adaptation.state.level == 0
        for seed in range(12):
            generate(model, sample(CODE, seed))
        after = headrace.attention.cache(model, adaptation)
        logits = model(input_ids=sample(CODE, 21), cache=before).logits
    assert [event["clusters"] for event in events(adaptation, "more clusters")] == [6, 8]
    assert after.plan.clusters == 8
    # what was there before is as it would be without adaptation
    assert before.plan.clusters == 4
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        model(input_ids=sample(PROSE, 20), cache=cache)
        assert torch.equal(model(input_ids=sample(CODE, 21), cache=cache).logits, logits)
    observed = events(adaptation, "observed")
    assert all(event["output_error"] < 2 * plan.output_error for event in observed[:10])
    assert all(event["output_error"] > 2 * plan.output_error for event in observed[10:13])
    assert observed[-1]["output_error"] == pytest.approx(0, abs=1e-9)
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == [
        event["event"] for event in adaptation.records.events
    ]


def test_a_plan_without_alternatives_gets_all_heads_in_the_end(model: LlamaForCausalLM) -> None:
    plan = replace(planned(model), alternatives=())
    adaptation = AttentionAdaptation(plan, every=1, limits=ClusterLimits(requests=2))
    with headrace.attention.compress(model, adaptation):
        for seed in range(6):
            generate(model, sample(CODE, seed))
    assert adaptation.plan.clusters == 8
    assert adaptation.plan.layers[0].keys is StorageFormat.MODEL


def test_observation_changes_no_output_and_one_request_in_many_is_observed(
    model: LlamaForCausalLM,
) -> None:
    plan = planned(model)
    adaptation = AttentionAdaptation(plan, every=3, limits=ClusterLimits(requests=99))
    tokens = [torch.cat([sample(PROSE, 2 * seed), sample(CODE, 2 * seed + 1)]) for seed in range(6)]
    with headrace.attention.compress(model, plan):
        expected = [generate(model, batch) for batch in tokens]
    with headrace.attention.compress(model, adaptation):
        for batch, output in zip(tokens, expected, strict=True):
            assert torch.equal(generate(model, batch), output)
        layer = headrace.attention.cache(model, adaptation).layers[0].layer
        assert layer.observer is not None
        other = headrace.attention.cache(model, adaptation)
        model(input_ids=tokens[0][:1], cache=other)
        assert adaptation.requests == 13  # the first of these was not used
        assert other.layers[0].layer.observer is not None
        plain = headrace.attention.cache(model, adaptation)
        model(input_ids=tokens[0][:1], cache=plain)
        assert plain.layers[0].layer.observer is None
    assert adaptation.requests == 14
    # requests 0, 3, 6 and 9: of prose in even places, of code in odd ones
    errors = [event["output_error"] for event in events(adaptation, "observed")]
    assert [error < 2 * plan.output_error for error in errors] == [True, False, True, False]


@pytest.mark.parametrize("name", MODELS)
def test_the_error_is_that_of_the_layers_outputs(name: str) -> None:
    """Of the first layer, whose inputs are the same by the plan and without."""
    served, tokens = model_of(name), sample((3, 90), 5, count=40)
    plan = shared_plan(served, fixed=True)
    block = next(
        module
        for module in served.modules()
        if getattr(module, "layer_idx", None) == 0 and hasattr(module, "forward")
    )
    outputs: list[torch.Tensor] = []
    handle = block.register_forward_hook(lambda _module, _args, out: outputs.append(out[0][0]))
    try:
        served(input_ids=tokens)
        with headrace.attention.compress(served, plan):
            cache = headrace.attention.cache(served, plan)
            observation = observe(served, cache, lambda _batch: 0)
            served(input_ids=tokens, cache=cache)
    finally:
        handle.remove()
    del cache
    seen = observation.take()
    assert seen is not None
    full, shared = outputs[0], outputs[-1]  # passes of one token come between
    bias = next(
        (
            projection.bias
            for projection in (getattr(block, part, None) for part in ("out_proj", "c_proj"))
            if projection is not None
        ),
        torch.zeros(()),
    )
    expected = (shared - full).square().sum() / (full - bias).square().sum()
    assert seen.layers[0] == pytest.approx(float(expected), rel=1e-4)
    assert seen.tokens == 40


@pytest.mark.parametrize("fixed", [False, True])
def test_the_error_is_the_same_in_parts_beside_others_and_with_padding(fixed: bool) -> None:
    served, tokens = model_of("llama-gqa"), sample((3, 90), 6, count=30)
    plan = shared_plan(served, fixed=fixed)

    def error(batch: torch.Tensor, mask: torch.Tensor, size: int, place: int) -> tuple[float, int]:
        with headrace.attention.compress(served, plan):
            cache = headrace.attention.cache(served, plan)
            observation = observe(served, cache, lambda _batch: place)
            for first in range(0, batch.shape[1], size):
                served(
                    input_ids=batch[:, first : first + size],
                    attention_mask=mask[:, : first + size],
                    cache=cache,
                )
        del cache
        seen = observation.take()
        assert seen is not None
        return seen.mean, seen.tokens

    alone, count = error(tokens, torch.ones_like(tokens), 30, 0)
    assert count == (30 if fixed else 25)
    left = torch.cat([sample((3, 90), 7, count=37), torch.zeros(1, 37, dtype=torch.int64)])
    left[1, 7:] = tokens
    mask = torch.ones_like(left)
    mask[1, :7] = 0
    right = left.roll(-7, dims=1)
    for batch, visible, size, place in (
        (tokens, torch.ones_like(tokens), 1, 0),
        (tokens, torch.ones_like(tokens), 7, 0),
        (left, mask, 37, 1),
        (left, mask, 5, 1),
        (right, mask.roll(-7, dims=1), 37, 1),
    ):
        seen, tokens_seen = error(batch, visible, size, place)
        assert seen == pytest.approx(alone, rel=1e-3)
        assert tokens_seen == count


def test_beams_sampling_and_assistants_are_observed(model: LlamaForCausalLM) -> None:
    plan = with_bits(plan_of(model, (0, 1, 0, 1)), StorageFormat.INT8, StorageFormat.INT8)
    own = replace(plan, layers=tuple(replace(layer, representatives=None) for layer in plan.layers))
    for served in (plan, own):
        adaptation = AttentionAdaptation(served, every=1)
        with headrace.attention.compress(model, served):
            beams = generate(model, sample(CODE, 1), num_beams=3)
            assisted = generate(model, sample(CODE, 1), assistant_model=model_of("llama"))
        with headrace.attention.compress(model, adaptation):
            assert torch.equal(generate(model, sample(CODE, 1), num_beams=3), beams)
            output = generate(model, sample(CODE, 1), assistant_model=model_of("llama"))
            assert torch.equal(output, assisted)
            model.generate(
                sample(CODE, 1), do_sample=True, num_return_sequences=3, max_new_tokens=4
            )
        assert len(events(adaptation, "observed")) == 3
        assert all(math.isfinite(e["output_error"]) for e in events(adaptation, "observed"))


@pytest.mark.slow
def test_compiled_steps_are_observed(model: LlamaForCausalLM) -> None:
    torch._dynamo.reset()
    plan, tokens = plan_of(model, (0, 1, 0, 1)), sample(CODE, 5, count=20)
    seen: list[float] = []
    for compiled in (False, True):
        adaptation = AttentionAdaptation(plan, every=1)
        with headrace.attention.compress(model, adaptation):
            step = torch.compile(model, fullgraph=True, backend="eager") if compiled else model
            cache = headrace.attention.cache(model, adaptation, max_tokens=32)
            model(input_ids=tokens[:, :8], cache=cache)
            for place in range(8, 20):
                step(input_ids=tokens[:, place : place + 1].contiguous(), cache=cache)
            cache.reset()  # compiled code refers to it
        (event,) = events(adaptation, "observed")
        assert event["tokens"] == 20
        seen.append(event["output_error"])
    assert seen[0] == pytest.approx(seen[1], rel=1e-4)


def test_turns_of_a_cache_are_looked_at_one_by_one(model: LlamaForCausalLM) -> None:
    adaptation = AttentionAdaptation(planned(model), every=1)
    with headrace.attention.compress(model, adaptation):
        cache = headrace.attention.cache(model, adaptation)
        for seed in range(3):
            model(input_ids=sample(PROSE, seed, count=LEAST_TOKENS // 2), cache=cache)
            adaptation.collect()
    assert [event["tokens"] for event in events(adaptation, "observed")] == [LEAST_TOKENS]
    del cache
    adaptation.collect()
    assert [event["tokens"] for event in events(adaptation, "observed")] == [
        LEAST_TOKENS,
        LEAST_TOKENS // 2,
    ]


def test_a_call_that_another_thread_computes_is_looked_at_when_all_layers_are(
    model: LlamaForCausalLM,
) -> None:
    """A new cache of the other thread took the layers that had none yet as without an error."""
    plan, tokens = planned(model), sample(CODE, 4, count=LEAST_TOKENS)
    errors: list[float] = []
    for collects in (False, True):
        adaptation = AttentionAdaptation(plan, every=1)
        collect = adaptation.collect if collects else lambda: None
        with headrace.attention.compress(model, adaptation):
            hook = model.model.layers[1].register_forward_pre_hook(lambda *_, run=collect: run())
            model(input_ids=tokens)
            hook.remove()
        (event,) = events(adaptation, "observed")
        errors.append(event["output_error"])
    assert errors[0] == errors[1]


def test_layers_that_an_early_exit_leaves_out_have_no_error(model: LlamaForCausalLM) -> None:
    """They counted as 0 in the mean over the layers."""
    adaptation = AttentionAdaptation(plan_of(model, (0, 1, 0, 1)), every=1)
    with headrace.attention.compress(model, adaptation):
        generate(model, sample(CODE, 1), assistant_early_exit=1)
    whole, early = (event["output_error"] for event in events(adaptation, "observed"))
    assert early > 0.7 * whole


def test_copies_of_an_observed_cache_are_not_observed(model: LlamaForCausalLM) -> None:
    adaptation = AttentionAdaptation(plan_of(model, (0, 1, 0, 1)), every=1)
    more = sample(CODE, 3)
    with headrace.attention.compress(model, adaptation):
        cache = headrace.attention.cache(model, adaptation)
        model(input_ids=sample(PROSE, 2), cache=cache)
        file = io.BytesIO()
        torch.save(cache, file)
        file.seek(0)
        copies = [copy.deepcopy(cache), torch.load(file, weights_only=False)]
        own_bytes = adaptation.plan.cache_bytes(1, 120)
        assert cache.allocated_bytes > own_bytes
        logits = model(input_ids=more, cache=cache).logits
        for other in copies:
            assert isinstance(other, CompressedCache)
            assert other.allocated_bytes == own_bytes
            assert torch.equal(model(input_ids=more, cache=other).logits, logits)
        cache.reset()
        assert cache.allocated_bytes == 0
        model(input_ids=more, cache=cache)


def test_mistakes_are_named(model: LlamaForCausalLM) -> None:
    with pytest.raises(AttentionError, match="every is 0, needs at least 1"):
        AttentionAdaptation(plan_of(model, (0, 1, 0, 1)), every=0)
    adaptation = AttentionAdaptation(plain_plan(model_of("llama-gqa")))
    with pytest.raises(AttentionError, match="it is for another model"):
        headrace.attention.cache(model, adaptation)
    with (
        pytest.raises(AttentionError, match="it is for another model"),
        headrace.attention.compress(model, adaptation),
    ):
        pass


def test_metrics_are_those_of_the_adaptation(model: LlamaForCausalLM) -> None:
    pytest.importorskip("prometheus_client")
    from headrace.attention import AttentionMetrics

    adaptation = AttentionAdaptation(plan_of(model, (0, 1, 0, 1)), every=2)
    metrics = AttentionMetrics(0, adaptation)

    def figures() -> dict[str, float]:
        return {metric.name: metric.samples[0].value for metric in metrics.collect()}

    assert math.isnan(figures()["headrace_attention_output_error"])
    with headrace.attention.compress(model, adaptation):
        for seed in range(3):
            generate(model, sample(CODE, seed))
    assert figures()["headrace_attention_requests"] == 3
    assert figures()["headrace_attention_observed"] == 2
    assert figures()["headrace_attention_clusters"] == 4
    assert figures()["headrace_attention_output_error"] > 0.01


def test_a_child_of_a_fork_adapts_by_itself(model: LlamaForCausalLM, tmp_path: Path) -> None:
    """It waited for a thread of its parent that looked at requests, for ever."""
    log = tmp_path / "log"
    adaptation = AttentionAdaptation(plan_of(model, (0, 1, 0, 1)), log_path=log)
    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        with adaptation._lock:
            taken.set()
            release.wait(HANG_S)

    def use() -> None:
        adaptation.collect()
        adaptation.records.add("of a child")

    with ThreadPoolExecutor(1) as threads:
        threads.submit(hold)
        assert taken.wait(HANG_S)
        assert status_of_child(use) == 0
        release.set()
    assert not log.exists()
