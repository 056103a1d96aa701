"""Alternatives of a plan with more clusters, for text on which its heads look at other tokens."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headrace.attention.plan.clusters import representatives_by_error, with_representatives
from headrace.attention.plan.plan import AttentionPlan, LayerPlan
from headrace.attention.profile import AttentionProfile

_STEPS = 3
"""Alternatives at most, the last of them with all heads: every one costs some observed requests."""


def with_alternatives(plan: AttentionPlan, profile: AttentionProfile | None) -> AttentionPlan:
    """Return a plan with alternatives: ever more clusters in every layer, up to all heads.

    Bits are the plan's, and so is membership: of each request, or fixed by the profile's output
    errors. Without a profile fixed membership has one alternative, all heads.
    """
    alternatives: list[AttentionPlan] = []
    for step in range(1, _STEPS + 1):
        layers = tuple(
            _with_more_clusters(
                layer,
                step / _STEPS,
                None if profile is None else profile.layers[index].output_error,
            )
            for index, layer in enumerate(plan.layers)
        )
        alternative = replace(plan.uncompressed(), layers=layers, first_tokens=plan.first_tokens)
        if alternative.clusters > (alternatives[-1] if alternatives else plan).clusters:
            heads = sum(layer.heads.query_heads for layer in layers)
            name = f"{alternative.clusters} of {heads} heads represent"
            alternatives.append(replace(alternative, chosen=name))
    return replace(plan, alternatives=tuple(alternatives))


def _with_more_clusters(
    layer: LayerPlan, share: float, error: NDArray[np.float64] | None
) -> LayerPlan:
    """Return a layer with so much of the difference between its clusters and all heads more."""
    heads = layer.heads
    clusters = _increased(layer.clusters, heads.query_heads, share)
    key_heads = _increased(layer.key_heads, heads.key_value_heads, share)
    if layer.representatives is None and clusters < heads.query_heads:
        return replace(layer, clusters=clusters, key_heads=min(key_heads, clusters))
    if layer.representatives is None or error is None or key_heads == heads.key_value_heads:
        return replace(
            layer,
            clusters=heads.query_heads,
            key_heads=heads.key_value_heads,
            representatives=None,
        )
    representatives, _ = representatives_by_error(error, heads, key_heads)
    return with_representatives(layer, representatives)


def _increased(count: int, most: int, share: float) -> int:
    return count + math.ceil(share * (most - count))
