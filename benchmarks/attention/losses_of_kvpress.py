"""Losses after contexts that kvpress compressed, in the environment of `requirements`' kvpress.

``python -m benchmarks.attention.losses_of_kvpress FOLDER`` reads a model, ``samples.pt`` [samples,
tokens] and ``settings.json`` (`context`: tokens of a sample that are compressed; `shares`: of their
bytes that go), and prints a line of JSON for each method and share: `press`, `removed`, `losses`.
"""

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kvpress import (  # type: ignore[import-not-found]
    ExpectedAttentionPress,
    KnormPress,
    SnapKVPress,
    StreamingLLMPress,
)
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, DynamicCache

Pressing = Callable[[], AbstractContextManager[Any]]
_PRESSES = (StreamingLLMPress, KnormPress, SnapKVPress, ExpectedAttentionPress)


def main(folder: Path) -> None:
    """Measure, and print."""
    settings = json.loads((folder / "settings.json").read_text())
    samples = torch.load(folder / "samples.pt")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def print_losses(press: str, removed: float, pressing: Pressing) -> None:
        losses = [_loss(model, sample, settings["context"], pressing) for sample in samples]
        print(json.dumps({"press": press, "removed": removed, "losses": losses}), flush=True)

    print_losses("none", 0.0, nullcontext)
    for share in settings["shares"]:
        for press in _PRESSES:
            pressing = partial(press(compression_ratio=share), model)
            print_losses(press.__name__, share, pressing)


def _loss(model: Any, sample: Tensor, context: int, pressing: Pressing) -> float:
    """Return the mean loss of the tokens after a context, of which a press removed some."""
    cache = DynamicCache()
    with torch.no_grad():
        with pressing():
            model(input_ids=sample[None, :context], past_key_values=cache, logits_to_keep=1)
        continuation = sample[context:]
        # The cache has fewer tokens than came before: the places of the next ones are passed.
        logits = model(
            input_ids=continuation[None],
            past_key_values=cache,
            position_ids=torch.arange(context, len(sample))[None],
        ).logits[0]
    return float(functional.cross_entropy(logits[:-1].float(), continuation[1:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
