"""Inputs of the throughput model: an encoding and configurations as arrays."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.index.configuration import Configuration
from headrace.index.profile import FEATURES, TraceEncoding
from headrace.index.tables import LEAVES

BUCKETS = {
    "leaf": len(LEAVES),
    "fragment_keys": 16,
    "fragments": 18,
    "initial_fragments": 22,
    "fingerprints": 3,
    "leaf_keys": 16,
    "fill": 12,
    "max_search": 8,
    "max_shifts": 16,
    "insert_fraction": 12,
}
"""Buckets of each field; bucket 0 of a field is that of leaves that do not depend on it."""

POOL = 4
"""Pixels of either axis of the image that are joined: 64 by 64 remain."""

_GAP_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
_LARGE_NODE = 1 << 16
"""Slots of a node from which on nodes count as equal: training traces fill no larger ones."""

_RARE = 64
"""Shares count by log2(1 + 64 x share): a few scans cost as much as all finds."""


def image_input(encoding: TraceEncoding) -> np.ndarray:
    """Return the image (2, 64, 64), float32: log2(1 + operations over the mean of all pixels)."""
    counts = encoding.image.astype(np.float64)
    side = counts.shape[0] // POOL
    pooled = counts.reshape(side, POOL, side, POOL, 2).sum(axis=(1, 3))
    mean = max(pooled.sum() / side**2, 1e-9)
    return np.log2(1 + pooled / mean).transpose(2, 0, 1).astype(np.float32)


def vector_input(encoding: TraceEncoding) -> np.ndarray:
    """Return features, rank-and-residual encoding and skew as one vector (float32)."""
    fits, hot, ranks = (encoding.tables[name] for name in ("fits", "hot", "ranks"))
    features = np.array(
        [
            np.log2(1 + _RARE * value) if name.endswith("_share") else value
            for name, value in ((name, encoding.features[name]) for name in FEATURES)
        ]
    )
    parts = [
        features,
        *(values for name, values in fits.items() if name != "scale"),
        _gap_quantiles(encoding.tables["gaps"]["share"]),
        *(np.log2(1 + _RARE * hot[name]) for name in ("reads", "writes")),
        [np.log2(1 + len(ranks[name]) * ranks[name].max()) for name in ("reads", "writes")],
    ]
    return np.concatenate(parts).astype(np.float32)


def configuration_input(configurations: Sequence[Configuration]) -> np.ndarray:
    """Return the buckets (configurations, fields), int64, as rows of one table of embeddings."""
    rows = [[_bucket(configuration, name) for name in BUCKETS] for configuration in configurations]
    starts = np.cumsum([0, *list(BUCKETS.values())[:-1]])
    return np.array(rows, dtype=np.int64) + starts


def coarse(configuration: Configuration) -> Configuration:
    """Return a configuration without what the model does not tell apart: very large nodes."""
    fragments = min(configuration.fragments, _LARGE_NODE)
    first = min(configuration.initial_fragments, fragments)
    return replace(configuration, fragments=fragments, initial_fragments=first)


def of_reads(encoding: TraceEncoding) -> TraceEncoding:
    """Return the encoding with finds of present keys in place of all operations."""
    return _changed(encoding, 0, {"find_share": 1.0})


def of_inserts(encoding: TraceEncoding) -> TraceEncoding:
    """Return the encoding with inserts of new keys in place of all operations."""
    return _changed(encoding, 1, {"insert_share": 1.0})


def _changed(encoding: TraceEncoding, channel: int, shares: dict[str, float]) -> TraceEncoding:
    names = ("find", "insert", "erase", "scan", "missing", "assign")
    image = np.zeros_like(encoding.image)
    image[:, :, channel] = encoding.image.sum(axis=2)
    features = {**encoding.features, **{f"{name}_share": 0.0 for name in names}, **shares}
    return replace(encoding, image=image, features=features)


def _gap_quantiles(shares: np.ndarray) -> np.ndarray:
    """Return quantiles of the gaps' log2, less the mean: linear models are free of scale."""
    logs = np.arange(len(shares))
    total = np.cumsum(shares)
    places = np.searchsorted(total, np.array(_GAP_QUANTILES) * max(total[-1], 1e-9))
    return logs[places.clip(0, len(logs) - 1)] - (logs * shares).sum()


def _bucket(configuration: Configuration, name: str) -> int:
    value = getattr(configuration, name)
    if name == "leaf":
        return LEAVES.index(value)
    if name not in configuration.used:
        return 0
    if name == "fingerprints":
        return 1 + int(value)
    if name in ("fill", "insert_fraction"):
        return 1 + round(10 * value)
    # powers of two: 1 and less are the first bucket
    return int(np.clip(1 + np.log2(max(value, 1)), 1, BUCKETS[name] - 1))
