"""Decoding with 32 heads of 128: one query for each request, over keys and values of all tokens."""

from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

from benchmarks.attention.cells import (
    ALL_THREADS,
    CLUSTERS,
    DIM,
    SCALE,
    attending,
    check_close,
    grid,
    mixed_membership,
    one_thread,
    seconds_of,
    store_of,
    stored_keys,
    wall_seconds,
)
from benchmarks.harness import Report
from headrace.attention import StorageFormat
from headrace.attention.plan.formats import LayerHeads
from headrace.attention.run import pages
from headrace.attention.run.membership import HeadMembership

HEADS = LayerHeads(query_heads=32, key_value_heads=32, dim=DIM)
BOUND = 2 * 32 / (32 + CLUSTERS)
"""Bytes of keys and values over those with the representatives' keys."""
_READ_BYTES = 60 << 20
"""Cells above do not fit into a processor's cache."""


def bars() -> dict[str, str]:
    """Return the bars: each of the worst cell."""
    return {
        "decode-over-own-full": ">=1.35",
        "decode-over-sdpa": ">=1.5",
        "int8-over-sdpa": ">=2",
        "int8-clusters-over-sdpa": ">=2.9",
        "of-read-rate": ">=0.85",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Measure all cells, one thread, in turns; and some with all threads."""
    ratios: dict[str, list[float]] = {name: [] for name in bars()}
    one_thread(lambda: _measure(report, ratios, quick))
    if not quick:
        one_thread(lambda: _measure_flex(report))
    for name, figures in ratios.items():
        report.bar(name, min(figures) if figures else None)
    report.note(
        f"decode: processor time of one thread, medians of calls in turns; {CLUSTERS} of 32 heads "
        f"represent, at most {BOUND:.2f} of full attention; of read: bytes a second over those of "
        "a plain sum over as many in a tensor as PyTorch allocates it; of read own: in a tensor as "
        "a cache allocates it; sdpa of read: the stock kernel's over the faster of both (1: fewer "
        "bytes gain no more than their share); wall: elapsed time of all threads"
    )


def _measure(report: Report, ratios: dict[str, list[float]], quick: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for batch, tokens in grid(quick, 2 * 32 * DIM * dtype.itemsize):
            _cell(report, ratios, dtype, batch, tokens)


def _cell(
    report: Report, ratios: dict[str, list[float]], dtype: torch.dtype, batch: int, tokens: int
) -> None:
    torch.manual_seed(0)
    query = torch.randn(batch, 32, 1, DIM).to(dtype)
    keys, values = (torch.randn(batch, 32, tokens, DIM).to(dtype) for _ in range(2))
    membership, full = mixed_membership(batch, HEADS, CLUSTERS), HeadMembership.full(batch, HEADS)
    shared = stored_keys(keys, membership)
    int8 = (StorageFormat.INT8, StorageFormat.INT8)
    own = pages.allocated(values.shape, dtype, values.device).copy_(values)
    calls = {
        "sdpa": lambda: functional.scaled_dot_product_attention(query, keys, values, scale=SCALE),
        "full": attending(query, store_of(keys, values), full),
        "clusters": attending(query, store_of(shared, values), membership),
        "int8": attending(query, store_of(keys, values, *int8), full),
        "int8 clusters": attending(query, store_of(shared, values, *int8), membership),
        "read": lambda: values.view(torch.float32).sum(),
        "read own": lambda: own.view(torch.float32).sum(),
    }
    _check(calls, dtype)
    cache = 2 * keys.nbytes
    seconds = seconds_of(calls, cache)
    rate = cache / seconds["full"]
    read_rate, own_read_rate = (values.nbytes / seconds[name] for name in ("read", "read own"))
    torch.set_num_threads(ALL_THREADS)
    wall = wall_seconds({name: calls[name] for name in ("sdpa", "clusters")}, rounds=5)
    torch.set_num_threads(1)
    of_sdpa = {
        name: seconds["sdpa"] / seconds[name] for name in ("clusters", "int8", "int8 clusters")
    }
    over_full = seconds["full"] / seconds["clusters"]
    report.row(
        "decode, 32 heads",
        type=str(dtype).removeprefix("torch."),
        batch=batch,
        tokens=tokens,
        megabytes=cache / 1e6,
        sdpa_us=1e6 * seconds["sdpa"],
        clusters_over_full=over_full,
        clusters_over_sdpa=of_sdpa["clusters"],
        int8_over_sdpa=of_sdpa["int8"],
        int8_clusters_over_sdpa=of_sdpa["int8 clusters"],
        sdpa_of_read=cache / seconds["sdpa"] / max(read_rate, own_read_rate),
        of_read=rate / read_rate,
        of_read_own=rate / own_read_rate,
        wall_over_sdpa=wall["sdpa"] / wall["clusters"],
    )
    ratios["decode-over-own-full"].append(over_full)
    ratios["decode-over-sdpa"].append(of_sdpa["clusters"])
    ratios["int8-over-sdpa"].append(of_sdpa["int8"])
    ratios["int8-clusters-over-sdpa"].append(of_sdpa["int8 clusters"])
    if cache > _READ_BYTES:
        ratios["of-read-rate"].append(rate / max(read_rate, own_read_rate))


def _measure_flex(report: Report) -> None:
    """Print compiled FlexAttention beside the stock kernel and ours."""
    flex: Any = torch.compile(flex_attention, dynamic=False)
    for dtype in (torch.float32, torch.bfloat16):
        for tokens in (2048, 8192):
            torch.manual_seed(0)
            query = torch.randn(1, 32, 1, DIM).to(dtype)
            keys, values = (torch.randn(1, 32, tokens, DIM).to(dtype) for _ in range(2))
            full = HeadMembership.full(1, HEADS)
            calls = {
                "sdpa": lambda q=query, k=keys, v=values: functional.scaled_dot_product_attention(
                    q, k, v, scale=SCALE
                ),
                "flex": lambda q=query, k=keys, v=values: flex(q, k, v, scale=SCALE),
                "full": attending(query, store_of(keys, values), full),
            }
            with torch.no_grad():
                rounding = 1e-5 if dtype == torch.float32 else 2e-2
                check_close("FlexAttention", calls["flex"](), calls["sdpa"](), rounding)
                seconds = seconds_of(calls, 2 * keys.nbytes)
            report.row(
                "compiled FlexAttention, 32 heads",
                type=str(dtype).removeprefix("torch."),
                tokens=tokens,
                sdpa_us=1e6 * seconds["sdpa"],
                flex_over_sdpa=seconds["sdpa"] / seconds["flex"],
                our_full_over_flex=seconds["flex"] / seconds["full"],
            )


def _check(calls: dict, dtype: torch.dtype) -> None:
    exact = calls["sdpa"]().transpose(1, 2)
    rounding = 1e-5 if dtype == torch.float32 else 2e-2
    check_close("full attention", calls["full"](), exact, rounding)
    check_close("8 bits", calls["int8"](), exact, 5e-2)
    check_close("8 bits of clusters", calls["int8 clusters"](), calls["clusters"](), 5e-2)
