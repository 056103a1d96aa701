"""Growth of resident memory during a prompt: one process, started with `RETURN_MEMORY`.

``python -m benchmarks.attention.prompt_memory CACHE TOKENS`` prints a line of JSON; CACHE is
"default", or one of the plans.
"""

import json
import sys
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import headrace.attention
from benchmarks.attention.decoders import DIM, HEADS, plans
from benchmarks.resident import resident_growth

_LAYERS, _HIDDEN, _VOCABULARY = 16, 256, 256
_WARM_TOKENS = 128


def main(name: str, tokens: int) -> None:
    """Measure, and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM._from_config(
        LlamaConfig(
            vocab_size=_VOCABULARY,
            hidden_size=_HIDDEN,
            intermediate_size=_HIDDEN,
            head_dim=DIM,
            num_hidden_layers=_LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=2 * tokens,
        ),
        dtype=torch.bfloat16,
    ).eval()
    compressed = plans(model)
    allocated: list[int] = []

    def run(count: int) -> None:
        prompt = torch.arange(count)[None] % _VOCABULARY
        with torch.no_grad():
            if name not in compressed:
                model(input_ids=prompt, cache=DynamicCache(), logits_to_keep=1)
                return
            with headrace.attention.compress(model, compressed[name]):
                cache = headrace.attention.cache(model, compressed[name])
                model(input_ids=prompt, cache=cache, logits_to_keep=1)
                allocated.append(cache.allocated_bytes)

    run(_WARM_TOKENS)
    growth = resident_growth(lambda: run(tokens))
    print(
        json.dumps(
            {
                "growth": growth,
                "allocated_bytes": allocated[-1] if allocated else None,
                "stock_bytes": 2 * _LAYERS * HEADS * DIM * 2 * tokens,
                "plans": list(compressed),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
