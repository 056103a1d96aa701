"""Generation over fewer bytes: heads that look at the same tokens share keys, in 8 bits.

    python examples/11-heads.py

A model of random weights in which every second head is a copy of another, as training makes heads
alike. A plan keeps the keys of half of the heads; which ones, each request's first tokens tell. For
a model in a folder `headrace attention measure` and `plan` make the plan (docs/attention.md).
"""

from dataclasses import replace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import headrace.attention
from headrace.attention import AttentionPlan, LayerPlan, StorageFormat

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


if __name__ == "__main__":
    main()
