"""Decoding, prompts and clustering on a GPU, beside the fastest of PyTorch's kernels.

The section is in the list only where torch sees a GPU; other runs have no bars of it.
"""

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.attention.cells import (
    CLUSTERS,
    DIM,
    SCALE,
    Call,
    attending,
    check_close,
    mixed_membership,
    store_of,
    stored_keys,
)
from benchmarks.attention.sizes import first_probabilities
from benchmarks.harness import Report
from headrace import _native
from headrace.attention import StorageFormat
from headrace.attention.plan.formats import LayerHeads
from headrace.attention.run.attend import attend_prompt, attend_stock

SECTION = "gpu"
HEADS = LayerHeads(query_heads=32, key_value_heads=32, dim=DIM)
LARGE_BYTES = 256 << 20
"""Keys and values above do not fit into a device's cache."""
_CELLS = ((1, 2048), (1, 8192), (4, 8192), (16, 8192))
_QUICK_CELLS = ((1, 2048), (4, 8192))
_BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)
_ROUNDS = 20

Seconds = Callable[[Mapping[str, Call]], dict[str, float]]
"""Times calls in turns."""


def bars() -> dict[str, str]:
    """Return the bars: each of the worst cell."""
    return {
        "gpu-decode": ">=1.25",
        "gpu-int8": ">=1.5",
        "gpu-least": ">=0.95",
        "gpu-prefill": ">=1.1",
        "gpu-cluster-ms": "<=1",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Measure decoding in CUDA graphs, prompts as they are called, and clustering."""
    device = torch.device("cuda")
    decoding = decode_ratios(report, device, _QUICK_CELLS if quick else _CELLS, graph_seconds)
    large = [ratios for size, ratios in decoding if size > LARGE_BYTES]
    report.bar("gpu-decode", min(ratios["clusters"] for ratios in large))
    report.bar("gpu-int8", min(ratios["int8"] for ratios in large))
    report.bar("gpu-least", min(min(ratios.values()) for _, ratios in decoding))
    tokens = (2048,) if quick else (2048, 8192)
    report.bar("gpu-prefill", min(prompt_ratios(report, device, tokens, stream_seconds)))
    report.bar("gpu-cluster-ms", cluster_ms(report, device))
    report.note(
        f"gpu: {torch.cuda.get_device_name(device)}, bfloat16, {CLUSTERS} of 32 heads of {DIM} "
        "represent; over the fastest of PyTorch's backends"
    )


def decode_ratios(
    report: Report, device: torch.device, cells: tuple[tuple[int, int], ...], timed: Seconds
) -> list[tuple[int, dict[str, float]]]:
    """Return bytes of keys and values, and times of the fastest stock kernel over ours, by cell."""
    int8 = (StorageFormat.INT8, StorageFormat.INT8)
    results: list[tuple[int, dict[str, float]]] = []
    for batch, tokens in cells:
        query, keys, values = _random(device, batch, 1, tokens)
        membership = mixed_membership(batch, HEADS, CLUSTERS)
        shared = stored_keys(keys, membership)
        stock = _stock_calls(query, keys, values, causal=False)
        ours = {
            "clusters": attending(query, store_of(shared, values), membership),
            "int8": attending(query, store_of(shared, values, *int8), membership),
        }
        expected = attend_stock(query, shared, values, membership, scale=SCALE)
        for name, tolerance in (("clusters", 3e-2), ("int8", 8e-2)):
            check_close(name, ours[name](), expected, tolerance)
        seconds = timed({**stock, **ours})
        fastest = min(stock, key=lambda name: seconds[name])
        ratios = {name: seconds[fastest] / seconds[name] for name in ours}
        results.append((2 * keys.nbytes, ratios))
        report.row(
            "decode on a GPU, 32 heads",
            batch=batch,
            tokens=tokens,
            megabytes=2 * keys.nbytes / 1e6,
            stock=fastest,
            stock_us=1e6 * seconds[fastest],
            clusters_over_stock=ratios["clusters"],
            int8_clusters_over_stock=ratios["int8"],
        )
    return results


def prompt_ratios(
    report: Report, device: torch.device, prompts: tuple[int, ...], timed: Seconds
) -> list[float]:
    """Return times of the fastest stock kernel over ours, by prompt."""
    results: list[float] = []
    for tokens in prompts:
        query, keys, values = _random(device, 1, tokens, tokens)
        membership = mixed_membership(1, HEADS, CLUSTERS)
        shared = stored_keys(keys, membership)
        stock = _stock_calls(query, keys, values, causal=True)

        def ours(query: Tensor = query, keys: Tensor = shared, values: Tensor = values) -> Tensor:
            return attend_prompt(query, keys, values, membership, scale=SCALE)  # noqa: B023

        seconds = timed({**stock, "ours": ours})
        fastest = min(stock, key=lambda name: seconds[name])
        results.append(seconds[fastest] / seconds["ours"])
        report.row(
            "prompts on a GPU",
            tokens=tokens,
            stock=fastest,
            stock_ms=1e3 * seconds[fastest],
            over_stock=results[-1],
        )
    return results


def cluster_ms(report: Report, device: torch.device) -> float:
    """Return the elapsed milliseconds from probabilities on the device to representatives."""
    probabilities = torch.from_numpy(first_probabilities()).to(device)
    out = np.empty((1, 32), np.int32)
    milliseconds: list[float] = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for layer in probabilities.cpu().numpy():
            _native.attention_clusters(layer, CLUSTERS, out)
        milliseconds.append(1e3 * (time.perf_counter() - began))
    report.row("clustering of a request on a GPU", ms=statistics.median(milliseconds))
    return statistics.median(milliseconds)


def _random(
    device: torch.device, batch: int, queries: int, tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    options = {"dtype": torch.bfloat16, "device": device}
    query = torch.randn(batch, 32, queries, DIM, **options)
    keys, values = (torch.randn(batch, 32, tokens, DIM, **options) for _ in range(2))
    return query, keys, values


def _stock_calls(query: Tensor, keys: Tensor, values: Tensor, *, causal: bool) -> dict[str, Call]:
    """Return the calls of those of PyTorch's backends that this device and these shapes have."""

    def call(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(
                query, keys, values, is_causal=causal, scale=SCALE
            )

    calls: dict[str, Call] = {}
    for backend in _BACKENDS:
        try:
            call(backend)
        except RuntimeError:  # there is no such kernel here
            continue
        calls[backend.name] = lambda backend=backend: call(backend)
    return calls


def graph_seconds(calls: Mapping[str, Call]) -> dict[str, float]:
    """Return the median seconds of calls that are recorded in CUDA graphs, in turns."""
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    for name, call in calls.items():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            call()
    return stream_seconds({name: graph.replay for name, graph in graphs.items()})


def stream_seconds(calls: Mapping[str, Call]) -> dict[str, float]:
    """Return the median seconds of calls on the device, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            call()
            ended.record()
            ended.synchronize()
            seconds[name].append(began.elapsed_time(ended) / 1e3)
    return {name: statistics.median(times) for name, times in seconds.items()}
