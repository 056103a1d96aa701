"""Attention over fewer bytes: heads that look at the same tokens share keys, of few bits."""

from typing import TYPE_CHECKING

from headrace.attention.errors import AttentionError, CapacityError
from headrace.attention.plan.formats import LayerHeads, StorageFormat
from headrace.attention.plan.plan import AttentionPlan, FrontierPoint, LayerPlan, ModelWeights
from headrace.facades import deferred_names

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch.nn import Module

    from headrace.attention.models import layer_heads, model_digest, model_weights
    from headrace.attention.profile import AttentionProfile, LayerProfile
    from headrace.attention.run.cache import CompressedCache

__all__ = [
    "AttentionError",
    "AttentionPlan",
    "AttentionProfile",
    "CapacityError",
    "FrontierPoint",
    "CompressedCache",
    "StorageFormat",
    "LayerHeads",
    "LayerPlan",
    "LayerProfile",
    "ModelWeights",
    "cache",
    "compress",
    "layer_heads",
    "model_digest",
    "model_weights",
]

_MODULES = {
    "AttentionProfile": "profile",
    "CompressedCache": "run.cache",
    "LayerProfile": "profile",
    "layer_heads": "models",
    "model_digest": "models",
    "model_weights": "models",
}
__getattr__, __dir__ = deferred_names(__name__, __all__, _MODULES)


def compress(model: "Module", plan: AttentionPlan) -> "AbstractContextManager[Module]":
    """Return a context in which a model of Transformers computes attention by a plan.

    Within it, `model.generate` and calls of the model begin with a compressed cache where none is
    passed; afterwards the model is as before.

    Raises
    ------
    AttentionError : the plan is for another model, or the model computes attention otherwise than
        through Transformers' interface; at the beginning, before anything is computed.
    """
    from headrace.attention.run.compress import compressed

    return compressed(model, plan)


def cache(
    model: "Module", plan: AttentionPlan, *, max_tokens: int | None = None
) -> "CompressedCache":
    """Return an empty cache, to be passed as ``cache`` to a model within `compress`.

    It can be copied, saved, and used over several turns.

    Parameters
    ----------
    max_tokens : allocates room for so many at once, and refuses more; None: it grows in blocks.

    Raises
    ------
    AttentionError : the plan is for another model.
    """
    from headrace.attention.run.cache import new_cache

    return new_cache(model, plan, max_tokens=max_tokens)
