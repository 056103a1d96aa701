"""Time to the first and to the next token of one request, by prompt (Figures 6.8 and 6.9)."""

import statistics
import time
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, LlamaForCausalLM

import headrace.attention
from benchmarks.attention.cells import check_close, one_thread
from benchmarks.attention.decoders import decoder, plans
from benchmarks.harness import Report
from headrace.attention import AttentionPlan

_STOCK = {"default": "sdpa", "unfused": "eager"}
"""Transformers' attention over its default cache; unfused: the paper's baseline."""
_NEXT_TOKENS = 5
_ROUNDS = 3
_TOKENS = (256, 512, 1024, 2048)


def bars() -> dict[str, str]:
    """Return no bars: first tokens are bound by products of weights, which all have in common."""
    return {}


def measure(report: Report, *, quick: bool) -> None:
    """Measure a decoder of 32 heads by every cache, one thread."""
    layers = 4 if quick else 16
    one_thread(lambda: _measure(report, layers, (256, 512) if quick else _TOKENS))
    report.note(
        f"latency: one request, {layers} layers of 2,048, 12 of 32 heads represent; processor time "
        "of one thread, medians of turns; the first token includes the clustering of heads"
    )


def _measure(report: Report, layers: int, prompts: tuple[int, ...]) -> None:
    model: Any = decoder(layers, 32)
    compressed = plans(model)
    names = (*_STOCK, "clusters", "int8 clusters")
    for tokens in prompts:
        generator = torch.Generator().manual_seed(tokens)
        prompt = torch.randint(model.config.vocab_size, (1, tokens), generator=generator)
        logits: dict[str, torch.Tensor] = {}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for _ in range(_ROUNDS):
            for name in names:
                logits[name], seconds = _first_and_next(model, compressed.get(name), name, prompt)
                times[name].append(seconds)
        medians = {name: np.median(of_turns, axis=0).tolist() for name, of_turns in times.items()}
        for name in names:
            check_close(name, logits[name], logits["default"], 5e-2)
            first, following = medians[name]
            report.row(
                "first and next tokens",
                tokens=tokens,
                cache=name,
                first_ms=1e3 * first,
                next_ms=1e3 * following,
                first_over_unfused=medians["unfused"][0] / first,
                next_over_unfused=medians["unfused"][1] / following,
                first_over_default=medians["default"][0] / first,
                next_over_default=medians["default"][1] / following,
            )


def _first_and_next(
    model: LlamaForCausalLM, plan: AttentionPlan | None, name: str, prompt: torch.Tensor
) -> tuple[torch.Tensor, tuple[float, float]]:
    """Return the logits of the last token, and the seconds of the first and of a next one."""
    if plan is None:
        model.set_attn_implementation(_STOCK[name])
        return _timed(model, DynamicCache(), prompt)
    with headrace.attention.compress(model, plan):
        return _timed(model, headrace.attention.cache(model, plan), prompt)


@torch.no_grad()
def _timed(
    model: Any, cache: Any, prompt: torch.Tensor
) -> tuple[torch.Tensor, tuple[float, float]]:
    seconds: list[float] = []
    logits: list[torch.Tensor] = []
    for tokens in (prompt, *(prompt[:, -1:] for _ in range(_NEXT_TOKENS))):
        began = time.thread_time()
        logits.append(model(input_ids=tokens, cache=cache, logits_to_keep=1).logits.float())
        seconds.append(time.thread_time() - began)
    return torch.stack(logits), (seconds[0], statistics.median(seconds[1:]))
