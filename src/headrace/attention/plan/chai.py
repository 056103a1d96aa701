"""The paper's plans: clusters of a layer at the elbow of their error (section 6.2.2 of CHAI)."""

from headrace.attention.plan.clusters import (
    clustered_by_distance,
    clustering_errors,
    elbow,
    with_representatives,
)
from headrace.attention.plan.plan import AttentionPlan, LayerPlan, uncompressed_layer
from headrace.attention.profile import AttentionProfile, LayerProfile


def chai_plan(
    profile: AttentionProfile, *, element_bytes: int, fixed: bool = False
) -> AttentionPlan:
    """Return the paper's plan; it keeps the model's type, and no loss is measured.

    Parameters
    ----------
    fixed : CHAI-static: a head is in the same cluster for all requests, by the profile's distances;
        otherwise in one by each request's first five tokens.
    """
    layer_of = _fixed_layer if fixed else _own_layer
    return AttentionPlan(
        layers=tuple(
            layer_of(layer, elbow(clustering_errors(layer.distance))) for layer in profile.layers
        ),
        model=profile.model,
        text=profile.text,
        element_bytes=element_bytes,
        chosen=f"CHAI: clusters by elbow, {'fixed' if fixed else 'of each request'}",
    )


def _own_layer(layer: LayerProfile, clusters: int) -> LayerPlan:
    """Return a layer of each request's own clusters; as many heads of keys as may be left."""
    heads = layer.heads
    return LayerPlan(heads=heads, clusters=clusters, key_heads=min(clusters, heads.key_value_heads))


def _fixed_layer(layer: LayerProfile, clusters: int) -> LayerPlan:
    representatives = clustered_by_distance(layer.distance, clusters)
    return with_representatives(uncompressed_layer(layer.heads), representatives)
