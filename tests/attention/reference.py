"""Attention with shared probabilities, in NumPy and double precision."""

import numpy as np
from numpy.typing import NDArray


def attention(
    query: NDArray,
    keys: NDArray,
    values: NDArray,
    representatives: NDArray,
    *,
    scale: float,
    allowed: NDArray | None = None,
) -> NDArray:
    """Return [batch, queries, heads, dim] of [batch, heads, queries, dim] and all heads' keys."""
    batch, heads, queries, dim = query.shape
    tokens = keys.shape[2]
    key_group, value_group = heads // keys.shape[1], heads // values.shape[1]
    if allowed is None:
        allowed = np.tri(queries, tokens, tokens - queries, dtype=bool)[None].repeat(batch, 0)
    out = np.zeros((batch, queries, heads, dim))
    for request in range(batch):
        for head in range(heads):
            other = representatives[request, head]
            scores = query[request, other].astype(float) @ keys[
                request, other // key_group
            ].T.astype(float)
            scores = np.where(allowed[request], scores * scale, -np.inf)
            largest = scores.max(axis=1, keepdims=True)
            weights = np.exp(scores - np.where(np.isinf(largest), 0, largest))
            total = weights.sum(axis=1, keepdims=True)
            probabilities = np.divide(weights, total, where=total > 0, out=np.zeros_like(weights))
            out[request, :, head] = probabilities @ values[request, head // value_group].astype(
                float
            )
    return out
