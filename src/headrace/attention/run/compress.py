"""A model whose attention is computed over compressed caches, for as long as a context lasts."""

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headrace.attention.errors import AttentionError
from headrace.attention.models import check_options, check_plan, implementation
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.run.cache import LAYER, CompressedCache
from headrace.attention.run.layer import LayerCache
from headrace.attention.run.operator import attend_layer
from headrace.attention.transformers import AttentionInterface, AttentionMaskInterface

IMPLEMENTATION = "headrace"
_CACHE_NAMES = ("cache", "past_key_values")
"""Names of a model's argument, in Transformers' order of deprecation."""


@contextmanager
def compressed(
    model: nn.Module, plan: AttentionPlan, new_cache: Callable[[], CompressedCache] | None = None
) -> Generator[nn.Module]:
    """Compute the model's attention by a plan meanwhile; see `headrace.attention.compress`.

    Parameters
    ----------
    new_cache : makes the cache of a call that begins without one; None: the plan's.
    """
    check_plan(model, plan)
    new_cache = new_cache or functools.partial(CompressedCache, plan)
    AttentionInterface.register(IMPLEMENTATION, attention)
    AttentionMaskInterface.register(IMPLEMENTATION, AttentionMaskInterface()["sdpa"])
    with ExitStack() as stack:
        stack.enter_context(implementation(model, IMPLEMENTATION))
        stack.enter_context(_generating(model, new_cache))
        base = getattr(model, "base_model", model)
        for module in dict.fromkeys((model, base)):
            hook = _supplied(module, new_cache)
            handle = module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
            stack.callback(handle.remove)
        yield model


@contextmanager
def _generating(model: nn.Module, new_cache: Callable[[], CompressedCache]) -> Generator[None]:
    """Let `model.generate` begin with a compressed cache where it is given none."""
    generate: Any = getattr(model, "generate", None)
    if generate is None:
        yield
        return

    @functools.wraps(generate)
    def with_cache(*args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("generation_config")
        named = kwargs.get("cache_implementation") or getattr(config, "cache_implementation", None)
        if named is not None:
            raise AttentionError(
                f"cache_implementation is {named!r}: within compress, caches are the plan's; pass "
                "cache=headrace.attention.cache(model, plan, max_tokens=...) for a fixed size"
            )
        if not any(kwargs.get(name) is not None for name in _CACHE_NAMES):
            kwargs["cache"] = new_cache()
        return generate(*args, **kwargs)

    own = vars(model).get("generate")
    model.generate = with_cache  # type: ignore[assignment]
    try:
        yield
    finally:
        del model.generate
        if own is not None:
            model.generate = own


def _supplied(module: nn.Module, new_cache: Callable[[], CompressedCache]) -> Any:
    """Return a hook that gives a call without a cache one of its own."""
    signature = inspect.signature(module.forward)
    name = next((name for name in _CACHE_NAMES if name in signature.parameters), None)
    if name is None:
        raise AttentionError(f"{type(module).__name__} takes no cache: it is no decoder")

    def supply(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del module
        cache: Any = None
        for other in _CACHE_NAMES:
            cache = kwargs.get(other) if cache is None else cache
        if cache is None:
            cache = signature.bind_partial(*args, **kwargs).arguments.get(name)
        if cache is None:
            return args, {**kwargs, name: new_cache()}
        if not isinstance(cache, CompressedCache):
            raise AttentionError(
                f"the cache is a {type(cache).__name__}: within compress pass none, or one by "
                "headrace.attention.cache(model, plan)"
            )
        return None

    return supply


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return the attention over the layer's compressed cache, as Transformers' interface asks.

    Raises
    ------
    AttentionError : there is no compressed cache; gradients are recorded; the attention has what
        is not computed here (a bias by position, a cap of scores, a window).
    """
    layer: LayerCache | None = getattr(key, LAYER, None)
    if layer is None:
        raise AttentionError(
            f"{type(module).__name__} has no compressed cache: call the model itself, or pass "
            "headrace.attention.cache(model, plan)"
        )
    if torch.is_grad_enabled() and query.requires_grad:
        raise AttentionError("compressed attention has no gradients: use torch.no_grad()")
    check_options(module, options)
    if attention_mask is not None:
        attention_mask = _allowed(attention_mask, query.shape[0])
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    if torch.compiler.is_compiling():
        out = attend_layer(query, key, value, attention_mask, layer.state, scale)
    else:
        out = layer.attend(query, key, value, scale=scale, allowed=attention_mask)
    layer.length.add_(query.shape[2])
    return out, None


def _allowed(mask: Tensor, batch: int) -> Tensor:
    """Return bool [batch, queries, tokens] of Transformers' mask [batch or 1, 1, ..]."""
    if mask.dim() != 4 or mask.shape[1] != 1:
        raise AttentionError(f"the mask is {tuple(mask.shape)}, needs [batch, 1, queries, tokens]")
    if mask.dtype != torch.bool:
        lowest = torch.finfo(mask.dtype).min
        if not bool(((mask == 0) | (mask <= lowest / 2)).all()):
            raise AttentionError("the mask adds to scores: only one that hides tokens is used")
        mask = mask == 0
    return mask[:, 0].expand(batch, -1, -1)
