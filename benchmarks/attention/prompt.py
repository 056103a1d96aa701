"""Prompts: attention of all queries, of which representatives alone have scores."""

import torch
from torch.nn import functional

from benchmarks.attention.cells import (
    CLUSTERS,
    DIM,
    SCALE,
    check_close,
    mixed_membership,
    one_thread,
    seconds_of,
    stored_keys,
)
from benchmarks.harness import Report
from headrace.attention.plan.formats import LayerHeads
from headrace.attention.run.attend import attend_prompt, attend_stock, stock_reason

HEADS = LayerHeads(query_heads=32, key_value_heads=32, dim=DIM)
SHARED_TOKENS = (1024, 2048)
"""Prompts that the bar of float32 is about; longer ones are printed."""


def bars() -> dict[str, str]:
    """Return the bars: each of the worst prompt."""
    return {"prefill-fp32": ">=1.2", "prefill-bf16": ">=0.97"}


def measure(report: Report, *, quick: bool) -> None:
    """Measure prompts of one request, one thread, in turns with the stock kernel."""
    ratios: dict[str, list[float]] = {name: [] for name in bars()}
    one_thread(lambda: _measure(report, ratios, quick))
    for name, figures in ratios.items():
        report.bar(name, min(figures))
    report.note(
        f"prompt: {CLUSTERS} of 32 heads represent; over the stock kernel's processor time on all "
        "heads; where the stock kernel is faster it computes the scores of all heads"
    )


def _measure(report: Report, ratios: dict[str, list[float]], quick: bool) -> None:
    fallbacks: list[bool] = []
    for dtype, bar in ((torch.float32, "prefill-fp32"), (torch.bfloat16, "prefill-bf16")):
        for tokens in (1024,) if quick else (1024, 2048, 8192):
            torch.manual_seed(0)
            query, keys, values = (torch.randn(1, 32, tokens, DIM).to(dtype) for _ in range(3))
            membership = mixed_membership(1, HEADS, CLUSTERS)
            shared = stored_keys(keys, membership)
            calls = {
                "stock": lambda q=query, k=keys, v=values: functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, scale=SCALE
                ),
                "shared": lambda q=query, k=shared, v=values, m=membership: attend_prompt(
                    q, k, v, m, scale=SCALE
                ),
            }
            expected = attend_stock(query, shared, values, membership, scale=SCALE)
            check_close("a prompt", calls["shared"](), expected, 1e-4 if bar[-1] == "2" else 3e-2)
            seconds = seconds_of(calls, 1 << 30)
            ratio = seconds["stock"] / seconds["shared"]
            report.row(
                "prompts",
                type=str(dtype).removeprefix("torch."),
                tokens=tokens,
                stock_ms=1e3 * seconds["stock"],
                over_stock=ratio,
                fallback=stock_reason(query, shared, membership) or "none",
            )
            fallbacks.append(stock_reason(query, shared, membership) is not None)
            if dtype != torch.float32 or tokens in SHARED_TOKENS:
                ratios[bar].append(ratio)
    report.note(
        f"prompt: {sum(fallbacks)} of {len(fallbacks)} prompts fall back to the stock kernel on "
        "this processor"
    )
