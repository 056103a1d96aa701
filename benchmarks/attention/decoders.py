"""Decoders of random weights in which heads are copies of others, and plans that share these."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from headrace.attention import AttentionPlan, LayerHeads, LayerPlan, StorageFormat, model_weights
from headrace.attention.plan.plan import uncompressed_layer

HIDDEN, HEADS, DIM = 2048, 32, 64
_FULL_LAYERS, _FULL_VOCABULARY = 16, 128_256
_KEPT_HEADS = {32: 12, 8: 4}
"""Of so many heads of keys, those that differ."""


def decoder(layers: int, key_value_heads: int) -> LlamaForCausalLM:
    """Return a decoder in bfloat16 of so many layers, with as large a share of 128,256 words.

    Weights and caches of fewer layers have the ratio of those of all 16, so that bytes bound the
    same gain.
    """
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_FULL_VOCABULARY * layers // _FULL_LAYERS,
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
    )
    model: Any = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    copies = copied_heads(key_value_heads)
    for layer in model.model.layers:
        _copy_heads(layer.self_attn.k_proj.weight, copies)
        queries = copies.repeat_interleave(HEADS // key_value_heads)
        within = torch.arange(HEADS) % (HEADS // key_value_heads)
        _copy_heads(layer.self_attn.q_proj.weight, queries * (HEADS // key_value_heads) + within)
    return model


def copied_heads(key_value_heads: int) -> Tensor:
    """Return the head of keys that every head of keys is a copy of."""
    return torch.arange(key_value_heads) % _KEPT_HEADS[key_value_heads]


def _copy_heads(weight: Tensor, heads: Tensor) -> None:
    with torch.no_grad():
        weight.copy_(weight.unflatten(0, (-1, DIM))[heads].flatten(0, 1))


def plans(model: LlamaForCausalLM) -> dict[str, AttentionPlan]:
    """Return plans by name: full attention, clusters of each request, fixed ones, and 8 bits."""
    config = model.config
    groups = config.num_key_value_heads
    heads = LayerHeads(query_heads=HEADS, key_value_heads=groups, dim=DIM)
    full = AttentionPlan(
        layers=(uncompressed_layer(heads),) * config.num_hidden_layers,
        weights=model_weights(model),
    )
    kept = _KEPT_HEADS[groups]
    shared = LayerPlan(heads=heads, clusters=kept * HEADS // groups, key_heads=kept)
    clusters = replace(full, layers=(shared,) * config.num_hidden_layers)
    group = HEADS // groups
    fixed = replace(
        shared,
        representatives=tuple(
            int(copied_heads(groups)[head // group]) * group + head % group for head in range(HEADS)
        ),
    )
    return {
        "full": full,
        "clusters": clusters,
        "fixed clusters": replace(full, layers=(fixed,) * config.num_hidden_layers),
        "int8": _of_8_bits(full),
        "int8 clusters": _of_8_bits(clusters),
    }


def _of_8_bits(plan: AttentionPlan) -> AttentionPlan:
    form = StorageFormat.INT8
    return replace(
        plan, layers=tuple(replace(layer, keys=form, values=form) for layer in plan.layers)
    )
