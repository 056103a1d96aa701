"""Small models of random weights, and plans for them."""

import copy
from dataclasses import replace
from functools import cache

import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from headrace.attention import AttentionPlan, LayerPlan, StorageFormat, layer_heads
from headrace.attention.plan.plan import uncompressed_layer

WORDS = 97
_SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=4)),
    "llama-gqa": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=2)),
    "mistral": lambda: MistralForCausalLM(
        MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=None)
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_SIZES, num_key_value_heads=2)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_SIZES, num_key_value_heads=2, head_dim=64)),
    "opt": lambda: OPTForCausalLM(
        OPTConfig(
            **{name: size for name, size in _SIZES.items() if name != "intermediate_size"},
            ffn_dim=64,
            word_embed_proj_dim=128,
            max_position_embeddings=512,
        )
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS,
            n_embd=128,
            n_layer=2,
            n_head=4,
            bos_token_id=1,
            eos_token_id=2,
        )
    ),
}


@cache
def model_of(name: str) -> nn.Module:
    """Return a model of random weights, the same for every caller."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    # larger than at initialisation, so that heads look at different tokens
    for parameter_name, parameter in model.named_parameters():
        if any(part in parameter_name for part in ("q_proj.weight", "k_proj.weight", "c_attn")):
            parameter.data.mul_(8)
    model.generation_config.pad_token_id = 0
    return model


def plain_plan(model: nn.Module) -> AttentionPlan:
    """Return the plan that changes nothing."""
    layers = tuple(uncompressed_layer(heads) for heads in layer_heads(model))
    return AttentionPlan(layers=layers, element_bytes=4)


def with_bits(plan: AttentionPlan, keys: StorageFormat, values: StorageFormat) -> AttentionPlan:
    layers = tuple(replace(layer, keys=keys, values=values) for layer in plan.layers)
    return replace(plan, layers=layers)


def shared_plan(model: nn.Module, *, fixed: bool) -> AttentionPlan:
    """Return a plan in which half of the heads, and of the heads of keys, represent the others."""
    layers: list[LayerPlan] = []
    for heads in layer_heads(model):
        half = heads.query_heads // 2
        group = heads.query_heads // heads.key_value_heads
        layers.append(
            LayerPlan(
                heads=heads,
                clusters=half,
                key_heads=half // group,
                representatives=tuple(head % half for head in range(heads.query_heads))
                if fixed
                else None,
            )
        )
    return AttentionPlan(layers=tuple(layers), element_bytes=4)


def with_copied_heads() -> nn.Module:
    """Return a model in which two heads of every layer look at what the other two look at."""
    model = copy.deepcopy(model_of("llama"))
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            rows = projection.weight.data.unflatten(0, (4, -1))
            projection.weight.data = rows[[0, 1, 0, 1]].flatten(0, 1).contiguous()
    return model
