"""Attention over fewer bytes: heads that look at the same tokens share keys, of few bits."""

from typing import TYPE_CHECKING

from headrace.attention.errors import AttentionError, CapacityError
from headrace.attention.plan.formats import Format, LayerHeads
from headrace.attention.plan.plan import AttentionPlan, Choice, LayerPlan
from headrace.facades import deferred_names

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch.nn import Module

    from headrace.attention.profile import AttentionProfile, LayerProfile
    from headrace.attention.run.cache import CompressedCache

__all__ = [
    "AttentionError",
    "AttentionPlan",
    "AttentionProfile",
    "CapacityError",
    "Choice",
    "CompressedCache",
    "Format",
    "LayerHeads",
    "LayerPlan",
    "LayerProfile",
    "cache",
    "compress",
    "layer_heads",
    "model_digest",
]

_MODULES = {
    "AttentionProfile": "profile",
    "CompressedCache": "run.cache",
    "LayerProfile": "profile",
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


def layer_heads(model: "Module") -> tuple[LayerHeads, ...]:
    """Return the heads of every layer of attention of a model, by a pass of one token.

    Raises
    ------
    AttentionError : attention is not computed through Transformers' interface, is cross attention,
        or slides over a window.
    """
    from headrace.attention.models import layer_heads

    return layer_heads(model)


def model_digest(model: "Module") -> str:
    """Return the digest of a model's weights that a plan for it holds."""
    from headrace.attention.models import model_digest

    return model_digest(model)
