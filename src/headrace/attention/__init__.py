"""Attention over fewer bytes: heads that look at the same tokens share keys, of few bits."""

from typing import TYPE_CHECKING

from headrace.attention.errors import AttentionError, CapacityError
from headrace.attention.plan.formats import LayerHeads, ModelWeights, StorageFormat
from headrace.attention.plan.plan import AttentionPlan, FrontierPoint, LayerPlan
from headrace.extras import require_metrics
from headrace.facades import deferred_names

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch.nn import Module

    from headrace.attention.adapt.adaptation import AttentionAdaptation
    from headrace.attention.adapt.decide import (
        ClusterAction,
        ClusterLimits,
        ClusterState,
        SeenRequest,
    )
    from headrace.attention.adapt.metrics import AttentionMetrics
    from headrace.attention.models import layer_heads, model_digest, model_weights
    from headrace.attention.profile import AttentionProfile, LayerProfile
    from headrace.attention.run.cache import CompressedCache

__all__ = [
    "AttentionAdaptation",
    "AttentionError",
    "AttentionMetrics",
    "AttentionPlan",
    "AttentionProfile",
    "CapacityError",
    "ClusterAction",
    "ClusterLimits",
    "ClusterState",
    "FrontierPoint",
    "CompressedCache",
    "StorageFormat",
    "LayerHeads",
    "LayerPlan",
    "LayerProfile",
    "ModelWeights",
    "SeenRequest",
    "cache",
    "compress",
    "layer_heads",
    "model_digest",
    "model_weights",
]

_MODULES = {
    "AttentionAdaptation": "adapt.adaptation",
    "AttentionMetrics": "adapt.metrics",
    "AttentionProfile": "profile",
    "ClusterAction": "adapt.decide",
    "ClusterLimits": "adapt.decide",
    "ClusterState": "adapt.decide",
    "CompressedCache": "run.cache",
    "LayerProfile": "profile",
    "SeenRequest": "adapt.decide",
    "layer_heads": "models",
    "model_digest": "models",
    "model_weights": "models",
}
_EXTRAS = {"AttentionMetrics": require_metrics}
__getattr__, __dir__ = deferred_names(__name__, __all__, _MODULES, _EXTRAS)


def compress(
    model: "Module", plan: "AttentionPlan | AttentionAdaptation"
) -> "AbstractContextManager[Module]":
    """Return a context in which a model of Transformers computes attention by a plan.

    Within it, `model.generate` and calls of the model begin with a compressed cache where none is
    passed; afterwards the model is as before.

    Parameters
    ----------
    plan : an adaptation in its place observes some requests, and gives new caches more clusters
        where the text has changed.

    Raises
    ------
    AttentionError : the plan is for another model, or the model computes attention otherwise than
        through Transformers' interface; at the beginning, before anything is computed.
    """
    from headrace.attention.run.compress import compressed

    _check_plan_type(plan)
    return compressed(model, plan) if isinstance(plan, AttentionPlan) else plan.compressed(model)


def cache(
    model: "Module",
    plan: "AttentionPlan | AttentionAdaptation",
    *,
    max_tokens: int | None = None,
) -> "CompressedCache":
    """Return an empty cache, to be passed as ``cache`` to a model within `compress`.

    It can be copied, saved, and used over several turns.

    Parameters
    ----------
    plan : see `compress`; by an adaptation it is of the present number of clusters.
    max_tokens : allocates room for so many at once, and refuses more, `model.generate` before its
        first token; None: it grows in blocks.

    Raises
    ------
    AttentionError : the plan is for another model.
    """
    from headrace.attention.run.cache import new_cache

    _check_plan_type(plan)
    if isinstance(plan, AttentionPlan):
        return new_cache(model, plan, max_tokens=max_tokens)
    return plan.new_cache(model, max_tokens=max_tokens)


def _check_plan_type(plan: object) -> None:
    from headrace.attention.adapt.adaptation import AttentionAdaptation

    if not isinstance(plan, AttentionPlan | AttentionAdaptation):
        raise AttentionError(
            f"the plan is a {type(plan).__name__}, needs an AttentionPlan: "
            "headrace.attention.AttentionPlan.load reads a file"
        )
