"""Networks of Hugging Face's transformers, with random weights: what most people train.

The library is imported when one is made: it is of the benchmark's requirements, not of the tests'.
"""

import os
from typing import Any

from torch import Tensor, nn


class _Logits(nn.Module):
    """A model of the library as a function of tokens; caches of keys are for generation."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits, (batch, tokens, vocabulary)."""
        return self.model(input_ids=ids).logits


def llama(vocabulary: int, layers: int, width: int) -> nn.Module:
    """Return a Llama: heads of 64, of which three share keys and values, and no dropout."""
    return _made("Llama", vocabulary, layers, width, num_key_value_heads=width // 192)


def mixtral(vocabulary: int, layers: int, width: int) -> nn.Module:
    """Return a Mixtral: as Llama, with 8 experts, of which a router chooses two for a token."""
    return _made("Mixtral", vocabulary, layers, width, num_key_value_heads=width // 192)


def bert(vocabulary: int, layers: int, width: int) -> nn.Module:
    """Return a BERT with its head of masked tokens, and dropout of 0.1, in attention, too."""
    return _made("Bert", vocabulary, layers, width, head="MaskedLM")


def _made(
    family: str, vocabulary: int, layers: int, width: int, head: str = "CausalLM", **options: Any
) -> nn.Module:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    import transformers

    config = getattr(transformers, f"{family}Config")(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        **options,
    )
    config.use_cache = False
    return _Logits(getattr(transformers, f"{family}For{head}")(config))
