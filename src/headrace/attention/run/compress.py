"""A model whose attention is computed over compressed caches, for as long as a context lasts."""

import functools
import inspect
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from headrace.attention.errors import AttentionError, CapacityError
from headrace.attention.models import (
    attention_modules,
    check_model,
    check_options,
    check_plan,
    holders,
    implementation,
)
from headrace.attention.new_keys import layer_of, plain_keys
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.run.cache import CompressedCache
from headrace.attention.run.contexts import Contexts, compressing
from headrace.attention.run.layer import LayerCache
from headrace.attention.run.operator import attend_layer
from headrace.attention.run.projections import only_used_rows
from headrace.attention.transformers import AttentionInterface, AttentionMaskInterface
from headrace.evaluation import evaluating

IMPLEMENTATION = "headrace"
_CACHE_NAMES = ("cache", "past_key_values")
"""Names of a model's argument, in Transformers' order of deprecation."""
_NEW_TOKENS = 20
"""Of a call of `generate` that does not say, in Transformers, as far as the model has positions."""


@contextmanager
def compressed(
    model: nn.Module, plan: AttentionPlan, new_cache: Callable[[], CompressedCache] | None = None
) -> Generator[nn.Module]:
    """Compute the model's attention by a plan meanwhile; see `headrace.attention.compress`.

    Parameters
    ----------
    new_cache : makes the cache of a call that begins without one; None: the plan's.
    """
    check_model(model)
    new_cache = new_cache or functools.partial(CompressedCache, plan)
    AttentionInterface.register(IMPLEMENTATION, attention)
    AttentionMaskInterface.register(IMPLEMENTATION, AttentionMaskInterface()["sdpa"])
    with compressing(model, new_cache) as contexts:
        check_plan(model, plan)
        with only_used_rows(model, plan, _CACHE_NAMES):
            if len(contexts.caches) == 1:
                _set_up(model, contexts)
            yield model


def _set_up(model: nn.Module, contexts: Contexts) -> None:
    """Let a model compute attention over compressed caches until its last context ends."""
    settings = contexts.settings
    layers = attention_modules(model)
    settings.enter_context(implementation(model, IMPLEMENTATION, layers))
    settings.enter_context(_generating(model, contexts.new_cache))
    # within a model that generates, whose cache is then the stock one
    inner = None if hasattr(model, "generate") else type(model).__name__
    # adapters such as PEFT's hand on what they are called with
    for module in holders(model, layers):
        if not hasattr(module, "set_attn_implementation"):
            continue
        if (hook := _supplied(module, contexts.new_cache, inner)) is None:
            continue
        handle = module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
        settings.callback(handle.remove)


@contextmanager
def evaluated(model: nn.Module, plan: AttentionPlan | None) -> Generator[None]:
    """Compute the model by a plan meanwhile, in evaluation and without gradients.

    Parameters
    ----------
    plan : None: the model as it is.
    """
    with (
        evaluating(model),
        torch.no_grad(),
        nullcontext() if plan is None else compressed(model, plan),
    ):
        yield


@contextmanager
def _generating(model: nn.Module, new_cache: Callable[[], CompressedCache]) -> Generator[None]:
    """Let `model.generate` begin with a compressed cache where it is given none."""
    generate: Any = getattr(model, "generate", None)
    if generate is None:
        yield
        return

    own = vars(model).get("generate")

    @functools.wraps(getattr(generate, "__func__", generate))
    def with_cache(self: Any, *args: Any, **kwargs: Any) -> Any:
        option = functools.partial(_option, self, args, kwargs)
        _check_generation(option)
        caches = [kwargs[name] for name in _CACHE_NAMES if kwargs.get(name) is not None]
        if not caches:
            kwargs["cache"] = new_cache()
        elif isinstance(caches[0], CompressedCache):
            _check_new_tokens(self, caches[0], args, kwargs, option)
        return (_class_generate(self) if own is None else own)(*args, **kwargs)

    # a method of the model, so that a copy of the model generates with its own weights
    model.generate = MethodType(with_cache, model)  # type: ignore[assignment]
    try:
        yield
    finally:
        del model.generate
        if own is not None:
            model.generate = own


def _class_generate(model: Any) -> Callable[..., Any]:
    """Return the `generate` of a model's class; an adapter's may be of the model within."""
    kind = type(model)
    if hasattr(kind, "generate"):
        return MethodType(kind.generate, model)
    return kind.__getattr__(model, "generate")


def _option(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """Return an option of a call of `generate`, or the model's own; None: neither has it."""
    config = args[1] if len(args) > 1 else kwargs.get("generation_config")
    configs = (config, getattr(model, "generation_config", None))
    settings = [kwargs.get(name), *(getattr(config, name, None) for config in configs)]
    return next((setting for setting in settings if setting is not None), None)


def _check_new_tokens(
    model: nn.Module,
    cache: CompressedCache,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    option: Callable[[str], Any],
) -> None:
    """Refuse to begin what a cache of fixed size has no room for in the end.

    Raises
    ------
    CapacityError
    """
    inputs = [*args[:1], *map(kwargs.get, ("inputs", "input_ids", "inputs_embeds"))]
    # without inputs a text begins with one token
    passed = next((tokens.shape[1] for tokens in inputs if isinstance(tokens, Tensor)), 1)
    new, length = option("max_new_tokens"), option("max_length")
    if new is None:
        if length is None:
            positions = getattr(model.config, "max_position_embeddings", None)
            length = min(passed + _NEW_TOKENS, positions or math.inf)
        new = length - passed
    mask = kwargs.get("attention_mask")
    # where the tokens of earlier turns are not passed again, the mask has them, too
    prompt = max(passed, mask.shape[-1]) if isinstance(mask, Tensor) else passed
    room = cache.get_max_length()
    # the last token is not stored; proposals are, until they turn out as others: tokens that are
    # looked up, and those of an assistant with another tokenizer, up to the last one
    looked_up = option("prompt_lookup_num_tokens") or 1
    translated = kwargs.get("assistant_tokenizer") is not None and not option("do_sample")
    stored = prompt + new - 1 + looked_up - 1 + translated
    if prompt <= room < stored:
        at_once = "" if looked_up == 1 else f" ({looked_up} of the prompt's are tried at once)"
        at_once += " (the assistant proposes the last one, too)" if translated else ""
        raise CapacityError(
            f"the cache has room for {room} tokens, the prompt has {prompt}, and up to {new} are "
            f"to follow{at_once}: make it with a max_tokens of {stored}, or generate fewer "
            "(max_new_tokens)"
        )


def _check_generation(option: Callable[[str], Any]) -> None:
    """Refuse generation without a cache, and with one of Transformers that the options ask for.

    Raises
    ------
    AttentionError : naming the option, of the call or of the model's generation_config.
    """
    if (implementation := option("cache_implementation")) is not None:
        raise AttentionError(
            f"cache_implementation is {implementation!r}: within compress, caches are the plan's; "
            "pass cache=headrace.attention.cache(model, plan, max_tokens=...) for a fixed size"
        )
    if option("use_cache") is False:
        raise AttentionError(
            "use_cache is False, in the call or in the model's generation_config: pass "
            "use_cache=True, or generate outside compress"
        )
    if option("use_mtp"):
        raise AttentionError(
            "use_mtp is True: the layers that predict several tokens keep a cache of Transformers; "
            "within compress pass an assistant_model, or prompt_lookup_num_tokens"
        )


def _supplied(
    module: nn.Module, new_cache: Callable[[], CompressedCache], inner: str | None
) -> Any:
    """Return a hook that gives a call without a cache one of its own; None: it takes none.

    Parameters
    ----------
    inner : name of a compressed model that does not generate itself, for errors; None: it does.
    """
    signature = inspect.signature(module.forward)
    name = next((name for name in _CACHE_NAMES if name in signature.parameters), None)
    if name is None:
        return None
    place = list(signature.parameters).index(name)

    def supply(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        cache: Any = None
        for cache_name in _CACHE_NAMES:
            cache = kwargs.get(cache_name) if cache is None else cache
        arguments = kwargs
        if cache is None:
            arguments = {**kwargs, **signature.bind_partial(*args, **kwargs).arguments}
            cache = arguments.get(name)
        _check_arguments(arguments, module.config)
        if cache is None:
            _check_positions(arguments)
            if place < len(args):  # a None
                return (*args[:place], new_cache(), *args[place + 1 :]), kwargs
            return args, {**kwargs, name: new_cache()}
        if not isinstance(cache, CompressedCache):
            around = (
                "" if inner is None else f"; to generate, compress the model that has the {inner}"
            )
            raise AttentionError(
                f"the cache is a {type(cache).__name__}: within compress pass none, or one by "
                f"headrace.attention.cache(model, plan){around}"
            )
        if not torch.compiler.is_compiling():
            cache.check_complete(getattr(module.config, "num_hidden_layers", None))
        return None

    return _Supply(supply)


class _Supply:
    """A hook that supplies caches; a copy of its model has the same one, and a file has none."""

    def __init__(self, supply: Callable[..., Any]) -> None:
        self._supply = supply

    def __call__(self, *arguments: Any) -> Any:
        return self._supply(*arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Supply":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise AttentionError(
            "a compressed model is pickled, for torch.save or another process: do so outside "
            "headrace.attention.compress, or save its weights alone (save_pretrained, state_dict)"
        )


def _check_arguments(arguments: Mapping[str, Any], config: Any) -> None:
    """Refuse what a call asks for and compressed attention does not have.

    Parameters
    ----------
    config : of the model, whose settings hold where the call has none.

    Raises
    ------
    AttentionError : naming the argument.
    """
    if arguments.get("encoder_hidden_states") is not None:
        raise AttentionError(
            "encoder_hidden_states are passed: cross attention is not compressed, only a decoder's "
            "own is"
        )
    asked = arguments.get("output_attentions")
    if getattr(config, "output_attentions", False) if asked is None else asked:
        raise AttentionError(
            "output_attentions is True, in the call or in the model's config: probabilities of all "
            "heads are not computed; call the model outside compress, with "
            'attn_implementation="eager"'
        )


def _check_positions(arguments: Mapping[str, Any]) -> None:
    """Refuse several sequences in one row, which Transformers separates where there is no cache.

    Raises
    ------
    AttentionError : positions do not ascend by one within a row, and there is no mask.
    """
    positions = arguments.get("position_ids")
    if arguments.get("attention_mask") is not None or not isinstance(positions, Tensor):
        return
    if positions.ndim == 3:  # by time, height and width, of tokens of images; behind those of texts
        if positions.shape[0] < 4:
            return
        positions = positions[0]
    if bool((positions.diff(dim=-1) != 1).any()):
        raise AttentionError(
            "position_ids begin again within a row: sequences that are packed into one row have "
            "one cache; pass them as rows of a batch"
        )


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
    if torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value)):
        raise AttentionError("compressed attention has no gradients: use torch.no_grad()")
    layer: LayerCache | None = layer_of(key)
    if layer is None:
        raise AttentionError(
            f"{type(module).__name__} has no compressed cache: call the model itself, without "
            "gradient checkpointing; a model that shares its config with a compressed one needs a "
            "copy of it"
        )
    key = plain_keys(key)
    if module.training and options.get("dropout"):
        raise AttentionError(
            f"{type(module).__name__} drops probabilities in training: call model.eval() first"
        )
    check_options(module, options)
    if attention_mask is not None:
        attention_mask = _allowed(attention_mask, query.shape[0])
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    if torch.compiler.is_compiling():
        out = attend_layer(query, key, value, attention_mask, layer.state, scale)
    else:
        out = layer.attend(query, key, value, scale=scale, allowed=attention_mask)
    layer.length.add_(query.shape[2])
    return out.contiguous(), None


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
