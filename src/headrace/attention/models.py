"""Attention layers of a model of Transformers, and a digest of its weights."""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from headrace.attention.errors import AttentionError
from headrace.attention.new_keys import plain_keys
from headrace.attention.plan.formats import LayerHeads, ModelWeights
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.transformers import ALL_ATTENTION_FUNCTIONS, AttentionMaskInterface
from headrace.evaluation import evaluating
from headrace.forks import ThreadLock
from headrace.preserve import objects_preserved

_COLLECTING = "headrace_collecting"
_OUTPUT_NAMES = ("o_proj", "out_proj", "c_proj", "dense", "wo")
_SAMPLED_NUMBERS = 4096
"""Of each tensor, evenly spaced, that a digest is made from: all of a large model take minutes."""

_collecting = ThreadLock()


class _Probe(NamedTuple):
    """A pass over a model's attention.

    Attributes
    ----------
    heads : of every layer.
    modules : that compute the layers' attention.
    numbered : modules that had a layer's number then, with that number: a model's encoder may have
        some, too.
    """

    heads: tuple[LayerHeads, ...]
    modules: "tuple[ref[nn.Module], ...]"
    numbered: "tuple[tuple[ref[nn.Module], int], ...]"


_probes: WeakKeyDictionary[nn.Module, _Probe] = WeakKeyDictionary()


@contextmanager
def implementation(
    model: nn.Module, name: str, layers: Sequence[nn.Module] | None = None
) -> Generator[None]:
    """Compute the model's attention by a registered implementation meanwhile.

    Encoders, of images or sounds, that a decoder has beside its own layers keep theirs.

    Parameters
    ----------
    layers : modules that compute the attention of a decoder's layers; those of another decoder
        keep their implementation, too. None: these are not known.

    Raises
    ------
    AttentionError : the model does not compute attention through Transformers' interface.
    """
    check_model(model)
    set_implementation: Any = model.set_attn_implementation
    config: Any = model.config
    configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    before = [
        (config, config._attn_implementation_internal)
        for config in configs
        if hasattr(config, "_attn_implementation_internal")  # not of torchao's parts
    ]
    own = config._attn_implementation_internal
    text_config = config.get_text_config(decoder=True)
    decoding = (type(config), type(text_config)) if text_config is not config else (object,)
    parts = model.modules() if layers is None else holders(model, layers)
    of_layers = {id(part.config) for part in parts if hasattr(part, "config")}
    try:
        set_implementation(name)
        if config._attn_implementation != name:
            raise AttentionError(
                f"{type(model).__name__} does not compute attention through Transformers' "
                "AttentionInterface: its keys and values cannot be compressed"
            )
        for layer_config, previous in before:  # a layer may have a copy of its own
            if not isinstance(layer_config, decoding) or id(layer_config) not in of_layers:
                layer_config._attn_implementation_internal = previous
            elif previous == own:
                layer_config._attn_implementation_internal = name
        yield
    finally:
        for layer_config, previous in before:
            layer_config._attn_implementation_internal = previous


def holders(model: nn.Module, layers: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the modules of a model that are one of the layers, or hold one."""
    computing = set(layers)
    return [part for part in model.modules() if not computing.isdisjoint(part.modules())]


def check_model(model: object) -> None:
    """Refuse what is no model of Transformers with weights.

    Raises
    ------
    AttentionError
    """
    if not isinstance(model, nn.Module):
        raise AttentionError(
            f"the model is a {type(model).__name__}, needs a model of Transformers: load it by "
            "AutoModelForCausalLM.from_pretrained"
        )
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise AttentionError("the model is compiled: pass the one that torch.compile was given")
    config: Any = getattr(model, "config", None)
    if not hasattr(model, "set_attn_implementation") or not hasattr(config, "_attn_implementation"):
        raise AttentionError(
            f"{type(model).__name__} is no model of Transformers: attention is compressed where a "
            "model computes it through AttentionInterface"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise AttentionError(
            f"{type(model).__name__} is on the meta device, where weights have no numbers: load it "
            "in whole, without offloading (device_map)"
        )


@contextmanager
def collecting(model: nn.Module, function: Callable[..., Any]) -> Generator[None]:
    """Compute the model's attention by a function meanwhile, in evaluation, without gradients.

    One thread at a time. The function is forgotten at the end, and with it what it refers to; the
    model's buffers and attributes, in which `forward` may count, are as before.

    Raises
    ------
    AttentionError : see `implementation`.
    """

    def collect(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *args: Any,
        **options: Any,
    ) -> Any:
        return function(module, query, plain_keys(key), value, attention_mask, *args, **options)

    AttentionMaskInterface.register(_COLLECTING, AttentionMaskInterface()["sdpa"])
    with (
        _collecting,
        objects_preserved(model),
        evaluating(model),
        torch.no_grad(),
        torch.compiler.set_stance("force_eager"),  # a compiled model takes minutes for one pass
    ):
        ALL_ATTENTION_FUNCTIONS[_COLLECTING] = collect
        try:
            with implementation(model, _COLLECTING):
                yield
        finally:
            del ALL_ATTENTION_FUNCTIONS[_COLLECTING]


def layer_heads(model: nn.Module) -> tuple[LayerHeads, ...]:
    """Return the heads of every layer of attention, by a pass of one token.

    Raises
    ------
    AttentionError : attention is not computed through the interface, is cross attention, or slides
        over a window.
    """
    return _probe_of(model).heads


def attention_modules(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the module that computes each layer's attention; see `layer_heads` for errors."""
    modules = (reference() for reference in _probe_of(model).modules)
    return tuple(module for module in modules if module is not None)


def _probe_of(model: nn.Module) -> _Probe:
    check_model(model)
    probe = _probes.get(model)
    if probe is None or probe.numbered != _numbered_modules(model):  # some are gone, or replaced
        probe = _probes[model] = _probed(model)
    return probe


def _numbered_modules(model: nn.Module) -> "tuple[tuple[ref[nn.Module], int], ...]":
    """Return a model's modules of layers, attention among them, with their layers' numbers."""
    numbers = ((module, getattr(module, "layer_idx", None)) for module in model.modules())
    return tuple((ref(module), index) for module, index in numbers if isinstance(index, int))


def _probed(model: nn.Module) -> _Probe:
    config: Any = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        raise AttentionError(
            f"{type(model).__name__} has cross attention: only decoders are compressed"
        )
    sliding = [kind for kind in getattr(config, "layer_types", None) or () if "full" not in kind]
    if sliding:
        raise AttentionError(
            f"{type(model).__name__} has layers of {sliding[0]}: only full attention is compressed"
        )
    layers: dict[int, tuple[nn.Module, LayerHeads]] = {}

    def record(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        del mask
        check_options(module, options)
        index = getattr(module, "layer_idx", None)
        if getattr(module, "is_kv_shared_layer", False):
            raise AttentionError(
                f"layer {index} of {type(model).__name__} uses the keys of another layer: only "
                "layers with keys of their own are compressed"
            )
        if index is None or index in layers or getattr(module, "is_cross_attention", False):
            raise AttentionError(
                f"{type(module).__name__} of {type(model).__name__} is no layer of a decoder's own "
                "attention"
            )
        heads = LayerHeads(
            query_heads=query.shape[1], key_value_heads=key.shape[1], dim=query.shape[3]
        )
        layers[index] = module, heads
        if value.shape[3] != query.shape[3]:
            raise AttentionError(
                f"{type(model).__name__} has values of {value.shape[3]} dimensions and queries of "
                f"{query.shape[3]}"
            )
        return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], query.shape[3]), None

    device = next(model.parameters()).device
    with collecting(model, record):
        try:
            model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=device), use_cache=False)
        except KeyError as error:
            if _COLLECTING not in str(error):
                raise
            raise AttentionError(
                f"{type(model).__name__} has an AttentionInterface of its own, in which nothing is "
                "registered: its keys and values cannot be compressed"
            ) from error
    if sorted(layers) != list(range(len(layers))) or not layers:
        raise AttentionError(
            f"{type(model).__name__} computes attention in layers {sorted(layers)}, needs 0, 1, .."
        )
    modules, heads = zip(*(layers[index] for index in range(len(layers))), strict=True)
    return _Probe(heads=heads, modules=tuple(map(ref, modules)), numbered=_numbered_modules(model))


def check_options(module: nn.Module, options: Mapping[str, Any]) -> None:
    """Refuse attention that is more than a softmax of products.

    Raises
    ------
    AttentionError : naming the option that the module passes to Transformers' interface.
    """
    causal = options.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise AttentionError(
            f"{type(module).__name__} lets tokens see later ones (is_causal is False): only "
            "decoders are compressed; a model like BERT is one by is_decoder=True in its config"
        )
    for name in ("softcap", "position_bias", "sliding_window", "s_aux", "indices", "block_indices"):
        if (option := options.get(name)) is None:
            continue
        limit = position_limit(module) if name == "sliding_window" else None
        if limit is None or option < limit:
            raise AttentionError(
                f"{type(module).__name__} has {name}: only plain scores are shared"
            )


def output_layer(module: nn.Module, heads: LayerHeads) -> Any:
    """Return the projection of heads' outputs where a module of attention has one, else None.

    Of an `nn.Linear` the weights are [width, heads * dim], of others [heads * dim, width].
    """
    for name in _OUTPUT_NAMES:
        layer = getattr(module, name, None)
        layer = getattr(layer, "base_layer", layer)  # an adapter has its weight, and another type
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() == 2:
            inputs = weight.shape[1 if isinstance(layer, nn.Linear) else 0]
            if inputs == heads.query_heads * heads.dim:
                return layer
    return None


def output_layers(model: nn.Module) -> tuple[Any, ...]:
    """Return `output_layer` of every layer of a model; see `layer_heads` for errors."""
    return tuple(map(output_layer, attention_modules(model), layer_heads(model)))


def model_digest(model: nn.Module) -> str:
    """Return a digest of the model's weights: of each tensor's name, shape and some numbers.

    Of the same model in another type it is another, as its losses are, where that type rounds its
    numbers: of weights that were saved in bfloat16 it is the same in float32.
    """
    state = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        for part_name, part in _plain_parts(name, tensor.detach()):
            flat = part.reshape(-1)
            step = max(1, flat.numel() // _SAMPLED_NUMBERS)
            state.update(f"{part_name}{tuple(part.shape)}".encode())
            state.update(flat[::step].float().cpu().numpy().tobytes())
    return state.hexdigest()


def _plain_parts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor, or the codes and units that one of fewer bits consists of, by name."""
    flatten: Any = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield name, tensor
        return
    for part in flatten()[0]:
        yield from _plain_parts(f"{name}.{part}", getattr(tensor, part))


def plain_numbers(weight: Tensor) -> Tensor:
    """Return a weight, or the numbers that its codes of fewer bits stand for."""
    return weight.dequantize() if hasattr(weight, "__tensor_flatten__") else weight


def model_weights(model: nn.Module) -> ModelWeights:
    """Return the weights that every step of decoding reads.

    Embeddings are left out, unless they are the output's weights, too.
    """
    multiplied: dict[int, Tensor] = {}
    for module in model.modules():
        if not isinstance(module, nn.Embedding):
            for parameter in module.parameters(recurse=False):
                multiplied[id(parameter)] = parameter
    config: Any = model.config
    return ModelWeights(
        read_bytes=sum(
            part.nbytes for weight in multiplied.values() for _, part in _plain_parts("", weight)
        ),
        read_numbers=sum(weight.numel() for weight in multiplied.values()),
        hidden_size=config.get_text_config().hidden_size,
    )


def position_limit(model: nn.Module) -> int | None:
    """Return the tokens for which a model's decoder has positions; None where it does not say."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config(decoder=True)
    limit = getattr(config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) else None


def check_plan(model: nn.Module, plan: AttentionPlan) -> None:
    """Refuse a plan for another model.

    Raises
    ------
    AttentionError : shapes or weights differ.
    """
    layers = layer_heads(model)
    planned = tuple(layer.heads for layer in plan.layers)
    if len(layers) != len(planned):
        raise AttentionError(
            f"the plan has {len(planned)} layers, {type(model).__name__} {len(layers)}: it is for "
            "another model"
        )
    for index, (heads, needed) in enumerate(zip(layers, planned, strict=True)):
        if heads != needed:
            raise AttentionError(
                f"layer {index} of {type(model).__name__} has {_text(heads)}, the plan's "
                f"{_text(needed)}: it is for another model"
            )
    if plan.model and plan.model != model_digest(model):
        raise AttentionError(
            "the plan is for other weights of this architecture, for these in another type "
            f"(--dtype of a command), or for a model that has this {type(model).__name__} within: "
            "compress that one, or make a plan by headrace attention plan"
        )


def _text(heads: LayerHeads) -> str:
    return f"{heads.query_heads} heads on {heads.key_value_heads} of {heads.dim} numbers"
