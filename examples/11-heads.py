"""Generation over fewer bytes: heads that look at the same tokens share keys, in 8 bits.

    pip install 'headrace[attention]'
    python examples/11-heads.py

A model of random weights in which every second head is a copy of another, as training makes heads
alike. A plan keeps the keys of half of the heads; which ones, each request's first tokens tell. For
a model in a folder `headrace attention measure` and `plan` make the plan (docs/attention.md). Where
heads follow others than those they agree with, an adaptation gives new caches more clusters.
"""

from dataclasses import replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import headrace.attention
from headrace.attention import AttentionAdaptation, AttentionPlan, LayerPlan, StorageFormat

NEW_TOKENS = 40


def model_with_copies() -> LlamaForCausalLM:
    """Return a model whose odd heads have the queries and keys of the even ones before them."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=500,
            hidden_size=256,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=8,
            pad_token_id=0,
        )
    )
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            rows = projection.weight.data.unflatten(0, (8, -1))
            rows[1::2] = rows[::2].clone()
    return model.eval()


def generated(model: LlamaForCausalLM, plan: AttentionPlan, prompt: torch.Tensor) -> torch.Tensor:
    """Generate by a plan, and print the bytes of the cache."""
    with headrace.attention.compress(model, plan):
        cache = headrace.attention.cache(model, plan)
        tokens = model.generate(prompt, cache=cache, max_new_tokens=NEW_TOKENS, do_sample=False)
    print(f"{plan.description}: {cache.allocated_bytes:,} bytes")
    return tokens


def clusters_after(model: LlamaForCausalLM, plan: AttentionPlan, prompt: torch.Tensor) -> int:
    """Return the clusters of new caches after some requests, all of them observed."""
    adaptation = AttentionAdaptation(plan, every=1)
    with headrace.attention.compress(model, adaptation):
        for _ in range(6):
            model.generate(prompt[:1], max_new_tokens=4, do_sample=False)
    first_error = adaptation.records.events[0]["output_error"]
    print(f"output error {first_error:.3f}, new caches: {adaptation.plan.description}")
    return adaptation.plan.clusters


def main() -> None:
    model = model_with_copies()
    prompt = torch.randint(3, 500, (2, 300))
    layers = [
        LayerPlan(heads=heads, clusters=4, key_heads=4)
        for heads in headrace.attention.layer_heads(model)
    ]
    shared = AttentionPlan(layers=tuple(layers), element_bytes=4)
    full = shared.uncompressed()
    coded = [replace(layer, keys=StorageFormat.INT8, values=StorageFormat.INT8) for layer in layers]

    expected = generated(model, full, prompt)
    assert torch.equal(generated(model, shared, prompt), expected), "copies share without a loss"
    generated(model, replace(shared, layers=tuple(coded)), prompt)

    followed = (0, 2, 2, 4, 4, 6, 6, 0)
    others = tuple(replace(layer, representatives=followed) for layer in layers)
    agreeing = replace(shared, output_error=0.0)
    assert clusters_after(model, agreeing, prompt) == shared.clusters
    assert clusters_after(model, replace(agreeing, layers=others), prompt) > shared.clusters


if __name__ == "__main__":
    main()
