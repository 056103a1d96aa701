"""Bytes of caches as allocated, beside the plan's prediction; time to cluster a request's heads."""

import time

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from benchmarks.harness import Report
from headrace import _native
from headrace.attention import LayerHeads, LayerPlan, StorageFormat
from headrace.attention.plan.plan import uncompressed_layer
from headrace.attention.run.layer import LayerCache

HEADS = LayerHeads(query_heads=32, key_value_heads=32, dim=64)
_LAYERS = 32
_FIRST_TOKENS = 5
_CLUSTERS = 12


def bars() -> dict[str, str]:
    """Return the bars."""
    return {
        "cache-bytes-error": "<=0.01",
        "cache-bytes-clusters": "<=0.69",
        "cache-bytes-int8": "<=0.54",
        "cluster-ms": "<=2",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Fill one layer's cache by each plan; cluster 32 layers of 32 heads."""
    del quick
    errors: list[float] = []
    shares: dict[str, float] = {}
    for name, plan in _plans().items():
        allocated, predicted, stock, maps = _bytes(plan, tokens=2048)
        errors.append(abs(allocated / predicted - 1))
        shares[name] = allocated / stock
        report.row(
            "bytes of a cache, 2 requests",
            cache=name,
            allocated=allocated,
            predicted=predicted,
            of_stock=shares[name],
            cluster_maps=maps,
        )
    report.bar("cache-bytes-error", max(errors))
    report.bar("cache-bytes-clusters", shares["12 of 32 heads represent"])
    report.bar("cache-bytes-int8", shares["8 bits"])
    report.bar("cluster-ms", _cluster_ms(report))


def _plans() -> dict[str, LayerPlan]:
    shared = LayerPlan(heads=HEADS, clusters=12, key_heads=12)
    own = uncompressed_layer(HEADS)
    return {
        "own": own,
        "12 of 32 heads represent": shared,
        "18 of 32 heads represent": LayerPlan(heads=HEADS, clusters=18, key_heads=18),
        "8 bits": _with(own, StorageFormat.INT8, StorageFormat.INT8),
        "4-bit keys, 8-bit values": _with(own, StorageFormat.INT4, StorageFormat.INT8),
        "4 bits": _with(own, StorageFormat.INT4, StorageFormat.INT4),
        "8 bits, 12 of 32 represent": _with(shared, StorageFormat.INT8, StorageFormat.INT8),
    }


def _with(plan: LayerPlan, keys: StorageFormat, values: StorageFormat) -> LayerPlan:
    return LayerPlan(
        heads=plan.heads,
        clusters=plan.clusters,
        key_heads=plan.key_heads,
        keys=keys,
        values=values,
    )


def _bytes(plan: LayerPlan, tokens: int) -> tuple[int, int, int, int]:
    """Return allocated, predicted, stock and cluster maps' bytes after a prompt and some steps."""
    torch.manual_seed(0)
    layer = LayerCache(plan, first_tokens=_FIRST_TOKENS)
    parts = (tokens - 100, *[1] * 100)
    for count in parts:
        query, keys, values = (torch.randn(2, 32, count, 64).bfloat16() for _ in range(3))
        layer.attend(query, keys, values, scale=0.125)
    rows = layer.representatives
    assert rows is not None
    assert plan.clustered or (rows == np.arange(32)).all()
    stock = 2 * 2 * 32 * tokens * 64 * 2
    predicted = plan.cache_bytes(2, tokens, element_bytes=2)
    return layer.allocated_bytes, predicted, stock, layer.map_bytes


def _cluster_ms(report: Report) -> float:
    """Return the milliseconds of clustering the heads of a request in all layers."""
    features = first_probabilities()
    out = np.empty((1, 32), np.int32)
    seconds: list[float] = []
    for _ in range(21):
        began = time.thread_time()
        for layer in features:
            _native.attention_clusters(layer, _CLUSTERS, out)
        seconds.append(time.thread_time() - began)
    milliseconds = 1e3 * float(np.median(seconds))
    report.row(
        "clustering of a request",
        layers=len(features),
        heads=32,
        clusters=_CLUSTERS,
        ms=milliseconds,
        scikit_learn_ms=_scikit_learn_ms(features),
    )
    return milliseconds


def _scikit_learn_ms(features: NDArray[np.float32]) -> float:
    """Return the milliseconds of scikit-learn's k-means for the same heads, begun once."""
    began = time.thread_time()
    for layer in features:
        KMeans(_CLUSTERS, n_init=1, random_state=0).fit(layer[0])
    return 1e3 * (time.thread_time() - began)


def first_probabilities() -> NDArray[np.float32]:
    """Return random ones of a request's first tokens, [32 layers, 1, 32 heads, tokens squared]."""
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(_LAYERS, 1, 32, _FIRST_TOKENS, _FIRST_TOKENS))
    weights = np.exp(np.where(np.tri(_FIRST_TOKENS, dtype=bool), scores, -np.inf))
    rows = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    return np.ascontiguousarray(rows.reshape(_LAYERS, 1, 32, -1))
