"""The roofline of a decoding step: bytes, operations and the gains that they allow."""

from dataclasses import replace

import pytest

from headrace.attention import (
    AttentionError,
    AttentionPlan,
    LayerHeads,
    ModelWeights,
    StorageFormat,
)
from headrace.attention.plan.plan import uncompressed_layer
from headrace.attention.plan.step import decoding_step, fitting_requests, step_bound
from headrace.roofline import Roofline

LAYERS, HIDDEN = 32, 4096


def model_plan(
    *, key_value_heads: int, dim: int, feed_forward: int, vocabulary: int
) -> AttentionPlan:
    """Return the plan that keeps everything of a decoder in bfloat16 with heads of 4,096 in all."""
    heads = LayerHeads(query_heads=HIDDEN // dim, key_value_heads=key_value_heads, dim=dim)
    attention = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * key_value_heads * dim
    numbers = LAYERS * (attention + 3 * HIDDEN * feed_forward) + vocabulary * HIDDEN
    return AttentionPlan(
        layers=(uncompressed_layer(heads),) * LAYERS,
        weights=ModelWeights(read_bytes=2 * numbers, read_numbers=numbers, hidden_size=HIDDEN),
    )


# With heads of 64 a row of 8 bits and its unit takes 1.06 bytes a number, with heads of 128 1.03.
LLAMA_7B = model_plan(key_value_heads=64, dim=64, feed_forward=11008, vocabulary=32000)
LLAMA_8B = model_plan(key_value_heads=16, dim=64, feed_forward=14336, vocabulary=128256)
WIDE_7B = model_plan(key_value_heads=32, dim=128, feed_forward=11008, vocabulary=32000)
INT8 = {"keys": StorageFormat.INT8, "values": StorageFormat.INT8}
INT4_KEYS = {"keys": StorageFormat.INT4, "values": StorageFormat.INT8}
CLUSTERS = {"clusters": 24, "key_heads": 24}


def changed(plan: AttentionPlan, **layer: object) -> AttentionPlan:
    return replace(plan, layers=tuple(replace(old, **layer) for old in plan.layers))


def keys_over_1_8(plan: AttentionPlan) -> AttentionPlan:
    """Return a plan with 1 / 1.8 of the heads of keys (Table 6.5), 8 or 9 of 16 in a layer."""
    heads = round(16 * LAYERS / 1.8)
    sizes = [heads // LAYERS + (layer < heads % LAYERS) for layer in range(LAYERS)]
    layers = [
        replace(old, key_heads=size, clusters=4 * size)
        for old, size in zip(plan.layers, sizes, strict=True)
    ]
    return replace(plan, layers=tuple(layers))


@pytest.mark.parametrize(
    ("plan", "batch", "tokens", "gain"),
    [
        (changed(LLAMA_7B, **CLUSTERS), 1, 2048, 1.13),
        (changed(LLAMA_7B, **CLUSTERS), 16, 8192, 1.36),
        (changed(LLAMA_7B, **INT8), 16, 8192, 1.65),
        (changed(LLAMA_7B, **CLUSTERS, **INT8), 16, 8192, 2.14),
        (changed(WIDE_7B, **INT8), 16, 8192, 1.68),
        (keys_over_1_8(LLAMA_8B), 16, 8192, 1.14),
        (changed(LLAMA_8B, **INT8), 16, 8192, 1.34),
        (changed(LLAMA_8B, **INT4_KEYS), 16, 8192, 1.47),
    ],
)
def test_whole_models_gain_what_their_bytes_allow(
    plan: AttentionPlan, batch: int, tokens: int, gain: float
) -> None:
    assert step_bound(plan, batch=batch, tokens=tokens) == pytest.approx(gain, abs=0.0065)


def test_attention_alone_gains_at_most_2h_over_h_and_k() -> None:
    plan = changed(WIDE_7B, clusters=12, key_heads=12)
    assert 1 / plan.share == pytest.approx(2 * 32 / (32 + 12))
    without = replace(plan, weights=ModelWeights(read_bytes=1, read_numbers=1, hidden_size=1))
    assert decoding_step(without, batch=1, tokens=1).weight_bytes == 0
    bound = step_bound(without, batch=16, tokens=1 << 20)
    assert bound == pytest.approx(1 / plan.share, abs=0.001)


def test_fixed_membership_leaves_out_rows_of_projections_for_any_batch() -> None:
    representatives = tuple(head % 12 for head in range(32))
    chosen = changed(WIDE_7B, clusters=12, key_heads=12)
    fixed = changed(chosen, representatives=representatives)
    rows = LAYERS * 2 * (32 - 12) * 128
    full = decoding_step(WIDE_7B, batch=16, tokens=1)
    for plan, batch, unused in ((fixed, 16, rows), (fixed, 1, rows), (chosen, 1, rows)):
        step = decoding_step(plan, batch=batch, tokens=1)
        assert full.weight_bytes - step.weight_bytes == pytest.approx(2 * HIDDEN * unused)
    assert decoding_step(chosen, batch=16, tokens=1).weight_bytes == full.weight_bytes


def test_operations_are_those_of_weights_and_of_scored_and_weighted_tokens() -> None:
    step = decoding_step(WIDE_7B, batch=4, tokens=100)
    assert WIDE_7B.weights is not None
    products = LAYERS * 2 * 32 * 128
    assert step.operations == 2 * 4 * (WIDE_7B.weights.read_numbers + 100 * products)


def test_on_a_device_operations_bound_where_they_take_longer() -> None:
    plan = changed(WIDE_7B, **INT8)
    memory = Roofline(name="memory", flops_per_s=1e24, bytes_per_s=1e12, launch_us=0)
    arithmetic = Roofline(name="arithmetic", flops_per_s=1, bytes_per_s=1e24, launch_us=0)
    step = decoding_step(plan, batch=16, tokens=8192)
    assert step.seconds(memory) == step.read_bytes / 1e12
    assert step.seconds(arithmetic) == step.operations
    by_bytes = step_bound(plan, batch=16, tokens=8192)
    assert step_bound(plan, batch=16, tokens=8192, device=memory) == pytest.approx(by_bytes)
    assert step_bound(plan, batch=16, tokens=8192, device=arithmetic) == 1


def test_more_requests_fit_by_the_share_of_bytes() -> None:
    plan = changed(WIDE_7B, **INT8)
    own = fitting_requests(WIDE_7B, tokens=8192, memory_bytes=16 << 30)
    assert own == (16 << 30) // (LAYERS * 2 * 32 * 128 * 2 * 8192) == 4
    assert fitting_requests(plan, tokens=8192, memory_bytes=16 << 30) == int(4 / plan.share)


def test_a_plan_without_weights_predicts_no_step() -> None:
    with pytest.raises(AttentionError, match="the plan has no weights"):
        decoding_step(replace(WIDE_7B, weights=None), batch=1, tokens=1)
