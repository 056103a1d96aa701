"""Decoding with 32 heads of queries on 8 of keys and values, against the stock kernel packed."""

import torch
from torch.nn import functional

from benchmarks.attention.cells import (
    DIM,
    SCALE,
    attending,
    check_close,
    grid,
    one_thread,
    seconds_of,
    store_of,
)
from benchmarks.harness import Report
from headrace.attention import StorageFormat
from headrace.attention.plan.formats import LayerHeads
from headrace.attention.run.membership import HeadMembership

HEADS = LayerHeads(query_heads=32, key_value_heads=8, dim=DIM)
FORMATS = {
    "own": (StorageFormat.MODEL, StorageFormat.MODEL),
    "int8": (StorageFormat.INT8, StorageFormat.INT8),
    "4-bit keys": (StorageFormat.INT4, StorageFormat.INT8),
    "4 bits": (StorageFormat.INT4, StorageFormat.INT4),
}


def bars() -> dict[str, str]:
    """Return the bars: each of the worst cell."""
    return {"gqa-over-sdpa": ">=1.35", "gqa-int8-over-sdpa": ">=2"}


def measure(report: Report, *, quick: bool) -> None:
    """Measure all cells in bfloat16, one thread, in turns."""
    ratios: dict[str, list[float]] = {name: [] for name in FORMATS}
    one_thread(lambda: _measure(report, ratios, quick))
    report.bar("gqa-over-sdpa", min(ratios["own"]))
    report.bar("gqa-int8-over-sdpa", min(ratios["int8"]))
    report.note(
        "grouped: the stock kernel has the four queries of a group as rows of one head, as "
        "Transformers calls it for one token; ratios to its processor time"
    )


def _measure(report: Report, ratios: dict[str, list[float]], quick: bool) -> None:
    for batch, tokens in grid(quick, 2 * 8 * DIM * 2):
        torch.manual_seed(0)
        query = torch.randn(batch, 32, 1, DIM).bfloat16()
        keys, values = (torch.randn(batch, 8, tokens, DIM).bfloat16() for _ in range(2))
        packed = query.view(batch, 8, 4, DIM)
        full = HeadMembership.full(batch, HEADS)
        calls = {
            "sdpa": lambda packed=packed, keys=keys, values=values: (
                functional.scaled_dot_product_attention(packed, keys, values, scale=SCALE)
            )
        }
        for name, formats in FORMATS.items():
            calls[name] = attending(query, store_of(keys, values, *formats), full)
        exact = calls["sdpa"]().reshape(batch, 1, 32, DIM)
        for name, tolerance in zip(FORMATS, (2e-2, 5e-2, 0.5, 0.7), strict=True):
            check_close(name, calls[name](), exact, tolerance)
        seconds = seconds_of(calls, 2 * keys.nbytes)
        over = {name: seconds["sdpa"] / seconds[name] for name in FORMATS}
        for name, ratio in over.items():
            ratios[name].append(ratio)
        report.row(
            "decode, 32 heads on 8, over the stock kernel",
            batch=batch,
            tokens=tokens,
            megabytes=2 * keys.nbytes / 1e6,
            sdpa_us=1e6 * seconds["sdpa"],
            **over,
        )
