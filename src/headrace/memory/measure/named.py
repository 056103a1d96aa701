"""Models by name, without weights: timm's, transformers', a local folder's, a cached hub model's.

Nothing is downloaded. Parameters are on the meta device.
"""

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headrace.errors import InputError
from headrace.extras import is_installed, require
from headrace.memory.measure.arguments import WithLoss, forward_signature
from headrace.memory.measure.eager import StepArguments
from headrace.memory.measure.fake_step import OWN_SAMPLE

_EXTRA = "models"
_PURPOSE = "estimating the memory of a model by its name"
_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_DEFAULT_LENGTH = 512
_HEADS = (
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
)
"""Of transformers' classes the first that a configuration has, which names no class itself."""
_SEQUENCE_HEADS = ("ForSequenceClassification", "ForNextSentencePrediction")
"""Ends of the names of classes whose labels are of sequences; those of others are of tokens."""
_CHOICES = 4
"""Of a sample of a class of multiple choice, as in SWAG and RACE."""
_SAMPLE_TARGETS = (
    "start_positions",
    "end_positions",
    "next_sentence_label",
    "sentence_order_label",
)
"""Targets of transformers' losses that are a class of each sample."""
_TARGETS = ("labels", "return_loss", *_SAMPLE_TARGETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model by its name, as a training step calls it.

    Attributes
    ----------
    title : name, library and class, for people.
    model : on the meta device, in training mode.
    called : the model with its loss, the loss alone being returned.
    arguments : batch size -> arguments of `called`, on the meta device.
    """

    title: str
    model: nn.Module
    called: nn.Module
    arguments: Callable[[int], StepArguments]


class LossAlone(nn.Module):
    """A model of transformers that returns its loss, or the mean of its output if it has none."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> torch.Tensor:
        """Return the loss."""
        pairs = {"return_loss": True} if _takes(self.model, "return_loss") else {}
        outputs = self.model(**inputs, **pairs)
        targets = [name for name in (*inputs, *pairs) if name in _TARGETS]
        if not targets:
            return outputs[0].float().mean()
        loss = outputs.get("loss")
        if loss is None:
            raise RuntimeError(
                f"{type(self.model).__name__} returns no loss for {', '.join(targets)} alone"
            )
        return loss


def named_model(
    name: str, *, length: int | None = None, size: int | None = None, dtype: torch.dtype
) -> NamedModel:
    """Return the model with a name: a folder, a model type of transformers, timm's, or the hub's.

    Parameters
    ----------
    name : path of a folder with a ``config.json``; a model type of transformers, at its default
        configuration; a model of timm; or a name of the hub whose configuration is cached.
    length : tokens of a sequence; default: 512, or the most that the model has positions for.
    size : pixels of an image's side; default: the model's own.
    dtype : of the parameters.

    Raises
    ------
    InputError : there is no such model, or the package that has it is not installed; the model has
        fewer positions than `length`, or takes images where it is given, or tokens where `size` is.
    """
    if not name:
        raise InputError("the name of the model is empty")
    folder = _folder(name)
    if folder is not None:
        return _of_folder(folder, name, length=length, size=size, dtype=dtype)
    transformers = _imported("transformers")
    if transformers is not None and name in transformers.CONFIG_MAPPING:
        config = transformers.AutoConfig.for_model(name)
        return _of_transformers(transformers, config, name, length=length, size=size, dtype=dtype)
    timm = _imported("timm")
    if timm is not None and timm.is_model(name.partition(".")[0]):
        _refuse_tag(timm, name)
        return _of_timm(timm, name, name, length=length, size=size, dtype=dtype)
    raise InputError(_unknown(name, transformers, timm))


def _folder(name: str) -> Path | None:
    """Return the folder that has a model's configuration: a local one, or one of the hub's cache.

    Raises
    ------
    InputError : a folder has no configuration, or a name of the hub is not cached.
    """
    if Path(name).is_dir():
        if not (Path(name) / _CONFIG).is_file():
            raise InputError(_without_configuration(Path(name)))
        return Path(name)
    if name.count("/") != 1 or name.startswith((".", "/")):
        return None
    require("huggingface_hub", _EXTRA, _PURPOSE)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, _CONFIG)
    except HFValidationError as error:
        raise InputError(
            f"there is no folder {name!r}, and the hub has no such name: {error}"
        ) from error
    if not isinstance(cached, str):
        raise InputError(
            f"there is no folder {name!r}, nor is such a model of the hub cached, and nothing is "
            f"downloaded unasked: hf download {name} {_CONFIG}"
        )
    return Path(cached).parent


def _without_configuration(folder: Path) -> str:
    """Return why a folder is no model's, with what to name in its place."""
    text = f"{folder} has no {_CONFIG}"
    if (folder / _ADAPTER).is_file():
        return f"{text}, but an adapter ({_ADAPTER}): give the model that it is for"
    inner = sorted(path.parent.name for path in folder.glob(f"*/{_CONFIG}"))
    if inner:
        return f"{text}, but parts with one: give one of {', '.join(inner)}"
    return f"{text}: needs a folder that save_pretrained wrote"


def _of_folder(
    folder: Path, name: str, *, length: int | None, size: int | None, dtype: torch.dtype
) -> NamedModel:
    path = folder / _CONFIG
    try:
        table = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: is no JSON file: {error}") from error
    if isinstance(table, dict) and "architecture" in table:
        require("timm", _EXTRA, _PURPOSE)
        source = f"local-dir:{folder}"
        return _of_timm(_imported("timm"), name, source, length=length, size=size, dtype=dtype)
    require("transformers", _EXTRA, _PURPOSE)
    transformers: Any = _imported("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # of any kind, by what is wrong in it
        if isinstance(table, dict) and "auto_map" in table:
            raise InputError(
                f"{path}: the model has code of its own (auto_map), which is not run: give "
                "headrace memory measure a function that builds it"
            ) from error
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: transformers cannot read it: {first}") from error
    return _of_transformers(transformers, config, name, length=length, size=size, dtype=dtype)


def _of_transformers(
    transformers: Any,
    config: Any,
    name: str,
    *,
    length: int | None,
    size: int | None,
    dtype: torch.dtype,
) -> NamedModel:
    auto = _class_of(transformers, config)
    config = _configuration_of(auto, config)
    for part in (config, *_configurations(config)):
        part.use_cache = False  # of keys and values, which is for generation
        if size is not None and hasattr(part, "image_size"):
            part.image_size = size
    try:
        with torch.device("meta"):
            make = auto._from_config if hasattr(auto, "_from_config") else auto.from_config
            model = make(config)
    except Exception as error:  # of a configuration whose defaults are no model
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{name}: transformers makes no model of the configuration: {first.rstrip('.')}; "
            f"{OWN_SAMPLE}"
        ) from error
    model = model.to(dtype).train()
    return NamedModel(
        title=f"{name}, {type(model).__name__} of transformers",
        model=model,
        called=LossAlone(model),
        arguments=_transformers_arguments(
            model, config, name, length=length, size=size, dtype=dtype
        ),
    )


def _class_of(transformers: Any, config: Any) -> Any:
    """Return the class of a configuration: the one that it names, or the first with a loss."""
    for architecture in config.architectures or ():
        if (named := getattr(transformers, architecture, None)) is not None:
            return named
    for head in _HEADS:
        classes = getattr(transformers, head)._model_mapping
        if type(config) in classes:
            first = classes[type(config)]  # of DeiT there are two
            return first[0] if isinstance(first, tuple | list) else first
    return transformers.AutoModel


def _configuration_of(auto: Any, config: Any) -> Any:
    """Return the configuration that a class takes: of a tower the one within that of both."""
    # automatic classes, which take any, have none
    config_class = getattr(auto, "config_class", None)
    if config_class is None or isinstance(config, config_class):
        return config
    parts = _configurations(config)
    return next((part for part in parts if isinstance(part, config_class)), config)


def _configurations(config: Any) -> list[Any]:
    """Return the configurations within one, such as a decoder's."""
    return [part for part in vars(config).values() if type(part).__name__.endswith("Config")]


def _transformers_arguments(
    model: Any, config: Any, name: str, *, length: int | None, size: int | None, dtype: torch.dtype
) -> Callable[[int], StepArguments]:
    has_pairs = _takes(model, "pixel_values") and _takes(model, "return_loss")
    if model.main_input_name == "input_ids" or has_pairs:
        if size is not None and not has_pairs:
            raise InputError(f"{name} takes tokens: the size of images is {size}, leave it out")
        tokens = _tokens(model, config, name, length)

        def of_text(batch: int) -> StepArguments:
            is_choice = type(model).__name__.endswith("ForMultipleChoice")
            shape = (batch, _CHOICES, tokens) if is_choice else (batch, tokens)
            names = ["input_ids", "attention_mask"]
            names += ["decoder_input_ids"] if config.is_encoder_decoder else []
            inputs = {name: _meta(shape, torch.int64) for name in names}
            images = {"pixel_values": _images(config, batch, size, dtype)} if has_pairs else {}
            return (), inputs | images | _text_targets(model, batch, tokens, dtype)

        return of_text
    if model.main_input_name == "pixel_values":
        _refuse_length(name, length)

        def of_images(batch: int) -> StepArguments:
            images = _images(config, batch, size, dtype)
            shape = (batch, *images.shape[-2:]) if _is_of_pixels(model) else (batch,)
            labels = {"labels": _meta(shape, torch.int64)} if _takes_labels(model) else {}
            return (), {"pixel_values": images} | labels

        return of_images
    raise InputError(
        f"{name} takes {model.main_input_name}: a sample is made for models of tokens (input_ids) "
        f"or images (pixel_values) alone; {OWN_SAMPLE}"
    )


def _tokens(model: Any, config: Any, name: str, length: int | None) -> int:
    """Return the tokens of a sequence, which a model has positions for."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    positions = positions or _DEFAULT_LENGTH
    tokens = length or min(_DEFAULT_LENGTH, positions)
    if tokens > positions and _embeds_positions(model, positions):
        raise InputError(f"{name} has positions for {positions:,} tokens, not for {tokens:,}")
    return tokens


def _images(config: Any, batch: int, size: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Return images of the size and the channels that a configuration, or one within it, has.

    Of a model of videos they are so many frames.
    """
    parts = (config, *_configurations(config))
    sizes = [part.image_size for part in parts if getattr(part, "image_size", None)]
    side: Any = size or next(iter(sizes), 224)
    sides = tuple(side) if isinstance(side, list | tuple) else (side, side)
    channels = next((part.num_channels for part in parts if hasattr(part, "num_channels")), 3)
    frames = [config.num_frames] if hasattr(config, "num_frames") else []
    return _meta((batch, *frames, channels, *sides), dtype)


def _refuse_length(name: str, length: int | None) -> None:
    if length is not None:
        raise InputError(f"{name} takes images: the length in tokens is {length}, leave it out")


def _embeds_positions(model: Any, positions: int) -> bool:
    """Return whether a table of the model has a row a position; some have two of padding more."""
    try:
        words = model.get_input_embeddings()
    except NotImplementedError:  # of a model with two towers
        words = None
    return any(
        isinstance(module, nn.Embedding)
        and module is not words
        and positions <= module.num_embeddings <= positions + 2
        for module in model.modules()
    )


def _text_targets(
    model: Any, batch: int, tokens: int, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return the targets of the loss of a model of tokens; none: it has no loss."""
    targets = {
        name: _meta((batch,), torch.int64) for name in _SAMPLE_TARGETS if _takes(model, name)
    }
    if not _takes_labels(model):
        return targets
    if type(model).__name__.endswith("ForMultipleChoice"):
        return targets | {"labels": _meta((batch,), torch.int64)}
    if not type(model).__name__.endswith(_SEQUENCE_HEADS):
        return targets | {"labels": _meta((batch, tokens), torch.int64)}
    problem, classes = model.config.problem_type, model.config.num_labels
    is_real = problem in ("regression", "multi_label_classification") or classes == 1
    shape = (batch, classes) if is_real and classes > 1 else (batch,)
    return targets | {"labels": _meta(shape, dtype if is_real else torch.int64)}


def _takes(model: nn.Module, name: str) -> bool:
    return name in forward_signature(model).parameters


def _takes_labels(model: nn.Module) -> bool:
    """Return whether a model takes labels that are a tensor: those of objects are a list."""
    labels = forward_signature(model).parameters.get("labels")
    return labels is not None and "dict" not in str(labels.annotation)


def _is_of_pixels(model: nn.Module) -> bool:
    return type(model).__name__.endswith("ForSemanticSegmentation")


def _refuse_tag(timm: Any, name: str) -> None:
    """Raise an error that names the nearest tags where a model of timm has none of this name."""
    architecture, _, tag = name.partition(".")
    tagged_names = timm.list_models(f"{architecture}.*", pretrained=True)
    if tag and name not in tagged_names:
        nearest = difflib.get_close_matches(name, tagged_names, n=3, cutoff=0.0)
        remedy = f"; near: {', '.join(nearest)}" if nearest else ""
        raise InputError(f"{name}: {architecture} of timm has no tag {tag!r}{remedy}")


def _of_timm(
    timm: Any,
    name: str,
    source: str,
    *,
    length: int | None,
    size: int | None,
    dtype: torch.dtype,
) -> NamedModel:
    """Return a model of timm.

    Parameters
    ----------
    source : what timm makes it of: a name, which has a tag where it is of certain weights, whose
        classes and image size may be others; or ``local-dir:`` and a folder.
    """
    _refuse_length(name, length)
    try:
        with torch.device("meta"):
            model = timm.create_model(source, pretrained=False)
    except (RuntimeError, TypeError, AttributeError, ValueError, KeyError) as error:
        raise InputError(f"{name}: timm makes no model of it: {error}") from error
    channels, *sides = model.default_cfg.get("input_size", (3, 224, 224))
    if size is not None:
        sides = [size, size]
        if hasattr(model, "set_input_size"):
            model.set_input_size(img_size=size)
    model = model.to(dtype).train()

    def arguments(batch: int) -> StepArguments:
        return (_meta((batch, channels, *sides), dtype), _meta((batch,), torch.int64)), {}

    return NamedModel(
        title=f"{name}, {type(model).__name__} of timm",
        model=model,
        called=WithLoss(model, nn.CrossEntropyLoss()),
        arguments=arguments,
    )


def _meta(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _imported(package: str) -> Any:
    """Return a package of the extra, None if it is not installed."""
    if not is_installed(package):
        return None
    return import_module(package)


def _unknown(name: str, transformers: Any, timm: Any) -> str:
    """Return why there is no model of a name, with the nearest names or the command to install."""
    text = f"there is no folder {name!r}"
    names: list[str] = []
    if transformers is not None:
        text += ", no such model type of transformers"
        names += list(transformers.CONFIG_MAPPING)
    if timm is not None:
        text += ", no such model of timm"
        names += timm.list_models()
    for package, module in (("transformers", transformers), ("timm", timm)):
        if module is None:
            text += f", and {package} is not installed (pip install 'headrace[{_EXTRA}]')"
    near = difflib.get_close_matches(name, names, n=3)
    return text + (f"; near: {', '.join(near)}" if near else "")
