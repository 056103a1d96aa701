"""Arguments of a model's call, by position and by name, and which of them is a loss's target."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from headrace.memory.errors import CaptureError

_ANY = Signature(
    [Parameter("args", Parameter.VAR_POSITIONAL), Parameter("kwargs", Parameter.VAR_KEYWORD)]
)

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

_CACHE = "use_cache"

_LOSS = "(loss)"
"""Name of a step's loss among the modules; no module of a model is likely to have it."""


class WithLoss(nn.Module):
    """A model and its loss: calls take the model's arguments and the target."""

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the loss of the model's output."""
        inputs, named, target = split_target(self.model, self.loss, args, kwargs)
        return self.loss(self.model(*inputs, **named), target)


def named_parts(called: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules by the names that users know: those of the model, without its loss's wrapper.

    Parameters
    ----------
    called : the model, or a `WithLoss`: names of the loss's modules then begin with ``(loss)``.
    """
    if not isinstance(called, WithLoss):
        yield from called.named_modules()
        return
    memo: set[nn.Module] = set()
    yield from called.model.named_modules(memo)
    yield from called.loss.named_modules(memo, _LOSS)


def part_named(called: nn.Module, name: str) -> nn.Module:
    """Return the module that `named_parts` yields with a name."""
    if not isinstance(called, WithLoss):
        return called.get_submodule(name)
    first, _, rest = name.partition(".")
    return called.loss.get_submodule(rest) if first == _LOSS else called.model.get_submodule(name)


def step_arguments(
    called: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a step's arguments in one form: equal calls by position and by name are one step.

    Parameters
    ----------
    called : the model, or a `WithLoss`: the target is then the last argument by position.

    Raises
    ------
    CaptureError : no argument is the target.
    """
    if not isinstance(called, WithLoss):
        return bound_arguments(called, args, kwargs)
    inputs, named, target = split_target(called.model, called.loss, args, kwargs)
    inputs, named = bound_arguments(called.model, inputs, named)
    return (*inputs, target), named


def forward_signature(module: nn.Module) -> Signature:
    """Return the signature of a module's `forward`; of one that has none, that it takes all."""
    try:
        return inspect.signature(module.forward)
    except (TypeError, ValueError):
        return _ANY


def bound_arguments(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments in one form for all calls that mean the same.

    By position as far as the signature allows, then by name in its order, further names sorted.
    Arguments that do not fit the signature are returned as they are: the call says what is wrong.
    A cache of keys, which models of transformers make unless told otherwise, is for generation.
    """
    signature = forward_signature(module)
    try:
        bound = signature.bind(*args, **dict(sorted(kwargs.items())))
    except TypeError:
        return tuple(args), dict(kwargs)
    if _CACHE in signature.parameters and bound.arguments.get(_CACHE) is None:
        bound.arguments[_CACHE] = False
    return bound.args, bound.kwargs


def split_target(
    model: nn.Module, loss: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Return the model's arguments, by position and by name, and the target.

    The target is the only name that the model does not take; of several, or of a model that takes
    all names, the one that the loss calls its target by, or `target`. Where no name is one, it is
    the last argument by position. The order of names has no meaning.

    Raises
    ------
    CaptureError : no argument is the target, or the only one, which leaves none for the model.
    """
    name = _target_name(model, loss, args, kwargs)
    named = dict(kwargs)
    if name is not None:
        target = named.pop(name)
        return tuple(args), named, target
    if not args:
        raise CaptureError(
            f"which of the arguments {', '.join(kwargs) or '(none)'} is the loss's target? Name it "
            "target, or pass it by position, behind the others"
        )
    if len(args) == 1 and not named and not _takes_none(model):
        raise CaptureError(
            "the only argument is the loss's target, which leaves none for the model: pass the "
            "model's arguments before it; for predictions call the model that was fitted"
        )
    return tuple(args[:-1]), named, args[-1]


def _takes_none(model: nn.Module) -> bool:
    try:
        forward_signature(model).bind()
    except TypeError:
        return False
    return True


def _target_name(
    model: nn.Module, loss: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    parameters = forward_signature(model).parameters
    takes_all = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    further = [name for name in kwargs if name not in parameters]
    if len(further) == 1 and not takes_all:
        return further[0]
    names = [*list(forward_signature(loss).parameters)[1:2], "target"]
    candidates = kwargs if not args else further
    return next((name for name in names if name in candidates), None)


def tensor_names(called: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return names of the tensors in a step's arguments, as `step_arguments` returns these.

    Those of the parameters of the model's `forward`, and `target`; with a number where an argument
    has several tensors.
    """
    is_with_loss = isinstance(called, WithLoss)
    model = called.model if isinstance(called, WithLoss) else called
    parameters = forward_signature(model).parameters.values()
    positional = [parameter.name for parameter in parameters if parameter.kind in _POSITIONAL]
    count = len(args) - is_with_loss
    labels = positional[:count] + [f"args[{place}]" for place in range(len(positional), count)]
    labels += ["target"] * is_with_loss
    names: list[str] = []
    for label, argument in (*zip(labels, args, strict=True), *kwargs.items()):
        tensors = sum(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(argument))
        is_alone = isinstance(argument, Tensor)
        names += [label] if is_alone else [f"{label}[{place}]" for place in range(tensors)]
    return names
