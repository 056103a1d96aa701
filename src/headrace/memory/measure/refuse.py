"""Refusals of a capture: models with hooks, traces that fail, nodes that cannot be read.

Each names the module, the reason and the remedy.
"""

# pyright: reportPrivateUsage=false

import re
import sys
from collections.abc import Mapping, Sequence
from inspect import getclosurevars
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any, NoReturn

import torch
from torch import nn
from torch._higher_order_ops.effects import with_effects
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils import _pytree as pytree

from headrace.memory.errors import CaptureError
from headrace.memory.measure.arguments import named_parts
from headrace.memory.measure.attributes import Name
from headrace.memory.measure.sizes import tensors_of
from headrace.memory.operators import is_rewritten

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes of modules with hooks that a trace cannot have."""
_GLOBAL_HOOKS = tuple(f"_global{kind}" for kind in HOOKS)
"""Attributes of `torch.nn.modules.module`, with such hooks of all modules."""
TENSOR_HOOKS = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
"""Methods that register hooks that a trace cannot have."""
BY_VALUES = ("DataDependentOutputException", "DynamicOutputShapeException")
"""Names of torch's errors where a model looks at values of tensors."""
_COLLECTING = "transformers.utils.output_capturing"
"""Name of the module with hooks for hidden states and attentions."""
_HOOK_REMEDIES = {
    name: f"use torch.nn.utils.parametrizations.{function} in place of torch.nn.utils.{function}"
    for name, function in (("WeightNorm", "weight_norm"), ("SpectralNorm", "spectral_norm"))
}
"""Remedies by the class of a hook; of others, to remove it."""
_NOT_FAKE = "all Tensors to FakeTensors"
"""Part of torch's error where a model reads a tensor that is neither an argument nor its own."""
_MOST_DEPTH = 3
"""Objects within objects in which tensors of an argument are looked for."""
_REASONS = {
    BY_VALUES[0]: "it has control flow on values (.item(), if); use torch.where, or switch it off "
    "(LayerDrop: layerdrop = 0 in the configuration)",
    BY_VALUES[1]: "its shapes depend on values, by {} (as in x[x > 0]); {}",
    _NOT_FAKE: "it reads a tensor that is no buffer; use register_buffer",
    "entirely functional graph": "it writes into a tensor that is no buffer; use register_buffer",
    "need to register a pytree": "it returns an object ({}); use a tuple or dict, "
    "switch that off (a cache of transformers: config.use_cache = False of all modules that have a "
    "config), or register a pytree",
    ".numpy() is not supported": "it computes with NumPy, and a trace has no values; use torch",
    "access data pointer": "it calls a kernel that torch cannot trace (Triton, CUDA, ctypes); make "
    "an operator of it (torch.library.custom_op), or switch to an implementation in torch",
    "Mixing fake modes": "it takes an object that holds tensors; pass tensors, or switch that off "
    "(a cache of transformers: config.use_cache = False before fit_blocks)",
    "use_reentrant=True": "it calls torch.utils.checkpoint with use_reentrant=True; remove the "
    "checkpoint, as the schedule decides what is computed again, or pass use_reentrant=False",
}
"""Reasons and remedies by parts of torch's errors."""
_REMEDIES = {
    "aten._ctc_loss": "compute this loss of the model's output, behind the step",
    "aten.bincount": "count by torch.nn.functional.one_hot and a sum",
    "aten._pack_padded_sequence": "run recurrent layers on padded sequences, and mask the rest",
    "aten.linalg_lstsq": "use torch.linalg.pinv",
    "aten.repeat_interleave": "pass output_size",
}
"""Remedies by operators whose shapes depend on values; of others, torch.where."""


def is_hooked(module: nn.Module) -> bool:
    """Return whether a module has hooks that a trace cannot have."""
    kinds = filter(None, map(module.__dict__.get, HOOKS))
    return any(not _is_idle(hook) for hooks in kinds for hook in hooks.values())


def _is_idle(hook: object) -> bool:
    """Return whether a hook collects outputs for a call of transformers, and no call asks for its.

    A call that does leaves it in the model. Within a trace it adds to what the call returns.
    """
    if not isinstance(hook, FunctionType) or hook.__module__ != _COLLECTING:
        return False
    collected = sys.modules[_COLLECTING]._active_collector.get()
    return not collected or getclosurevars(hook).nonlocals["key"] not in collected


def has_global_hooks() -> bool:
    """Return whether torch has hooks of all modules that a trace cannot have."""
    return any(map(vars(nn.modules.module).get, _GLOBAL_HOOKS))


def refuse_hooks(model: nn.Module) -> None:
    """Raise a `CaptureError` if a module, or all, have hooks that a trace cannot have.

    So have modules that torch.jit has compiled: it takes no hooks, and a model that is measured
    could not be set back.
    """
    if has_global_hooks():
        raise CaptureError(
            "torch has hooks of all modules (torch.nn.modules.module.register_module_...), which "
            "would run while the model is captured and not in training; remove them"
        )
    for name, module in named_parts(model):
        if isinstance(module, torch.jit.ScriptModule):
            raise _refusal(
                name,
                "torch.jit has compiled it, and keeps its buffers and attributes; use the module "
                "that it was made from",
            )
        for kind in HOOKS:
            if hooks := [hook for hook in getattr(module, kind).values() if not _is_idle(hook)]:
                classes = (type(hook).__name__ for hook in hooks)
                remedies = filter(None, map(_HOOK_REMEDIES.get, classes))
                raise CaptureError(
                    f"module {module_label(name)} has {kind[1:].replace('_', ' ')}, which would "
                    "run while the model is captured and not in training; "
                    + next(remedies, "remove them")
                )


def refuse_layouts(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise a `CaptureError` if a tensor of a model, or of its arguments, is no plain one.

    Fake tensors of some sparse and nested layouts do not exist, and torch's own errors say nothing
    of them. Quantized weights and sharded ones are traced as several tensors.
    """
    for name, module in named_parts(model):
        parameters = module.named_parameters(recurse=False)
        for label, tensor in chain(parameters, module.named_buffers(recurse=False)):
            if not _is_dense(tensor):
                raise _refusal(name, f"its {label} is {_unlike_dense(tensor)}")
    for tensor in pytree.tree_leaves((args, kwargs)):
        if isinstance(tensor, torch.Tensor) and not _is_dense(tensor):
            raise _refusal("", f"an argument is {_unlike_dense(tensor)}")


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested and not _holds_others(tensor)


def _holds_others(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is of a class that is traced as the tensors within it."""
    return hasattr(tensor, "__tensor_flatten__")


def _unlike_dense(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "a nested tensor; use one with padding (to_padded_tensor)"
    if _holds_others(tensor):
        return f"of the class {type(tensor).__name__}, which holds other tensors; use plain ones"
    layout = str(tensor.layout).removeprefix("torch.").removeprefix("_")
    kind = "a sparse tensor" if "sparse" in layout else "a tensor of a library's own layout"
    return f"{kind} ({layout}); use dense ones (of nn.Embedding: sparse=False)"


def hook_counts(model: nn.Module) -> dict[Name, int]:
    """Return how many hooks modules have, by the module's name and the kind of hook."""
    return {
        (name, kind): len(getattr(module, kind))
        for name, module in named_parts(model)
        for kind in HOOKS
    }


def trace_refusal(
    error: Exception, module: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> CaptureError:
    """Return the refusal of a module whose trace has failed.

    Parameters
    ----------
    module : its name.
    args, kwargs : of the sample.
    """
    text = f"{type(error).__name__}: {str(error).strip()}"
    holder = _tensor_holder(args, kwargs) if _NOT_FAKE in text else None
    if holder is not None:
        return _refusal(
            "",
            f"an argument is a {holder}, which holds tensors; pass these, alone or in tuples, "
            "lists and dictionaries, or register a pytree",
        )
    sample = f"check that the model takes the sample ({_sample_shapes(args, kwargs)})"
    operators = re.findall(r"(?<=Exception: )aten\.\w+", text) or ["unknown"]
    remedy = _REMEDIES.get(operators[0], "use torch.where")
    reasons = (
        reason.format(*re.findall(r"<class '(?:.*\.)?(\w+)'>", text), operators[0], remedy)
        for part, reason in _REASONS.items()
        if part in text
    )
    return _refusal(module, next(reasons, f"{text.splitlines()[0]}; {sample}"))


def _tensor_holder(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the class of an argument that is no tensor and has tensors within it."""
    for leaf in pytree.tree_leaves((args, kwargs)):
        if not isinstance(leaf, torch.Tensor) and _has_tensors(leaf, 0):
            return type(leaf).__name__
    return None


def _has_tensors(value: object, depth: int) -> bool:
    """Return whether a value is a tensor, or an object with one, in objects of its own too."""
    if isinstance(value, (torch.Tensor, type, ModuleType)) or depth == _MOST_DEPTH:
        return isinstance(value, torch.Tensor)
    attributes = dict(getattr(value, "__dict__", {}))
    return any(_has_tensors(part, depth + 1) for part in pytree.tree_leaves(attributes))


def _sample_shapes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{leaf.dtype} {tuple(leaf.shape)}".removeprefix("torch.")
        for leaf in pytree.tree_leaves((args, kwargs))
        if isinstance(leaf, torch.Tensor)
    )


def module_label(name: str) -> str:
    """Return a module's name for a message."""
    return repr(name) if name else "itself (the model)"


def module_of(node: Node) -> str:
    """Return the name of the module that a node was traced in."""
    return str(node.meta.get("custom", {}).get("module", ""))


def refuse_unreadable(node: Node) -> None:
    """Raise a `CaptureError` for a node with sparse tensors or a random generator of its own."""
    for tensor in tensors_of(node):
        if not _is_dense(tensor):
            _refuse(node, f"is {_unlike_dense(tensor)}")
    if node.kwargs.get("generator") is not None:
        _refuse(node, "draws from a generator of its own; use the default one")


def refuse_ordered(node: Node) -> None:
    """Raise a `CaptureError` for a node with an operator that torch orders among others."""
    if node.target is with_effects:
        remedy = (
            "use functions of torch.distributed._functional_collectives, which return tensors"
            if str(node.args[1]).startswith("c10d.")
            else "of torch.linalg use solve_ex, cholesky_ex and inv_ex, which check nothing"
        )
        _refuse(node, f"orders {node.args[1]} among effects; {remedy}")


def refuse_higher_order(node: Node) -> None:
    """Raise a `CaptureError` for a node that calls no operator."""
    refuse_ordered(node)
    if not isinstance(node.target, OpOverload) and not is_rewritten(node):
        _refuse(node, "is a call of higher order: write it as operators")


def _refuse(node: Node, reason: str) -> NoReturn:
    raise _refusal(module_of(node), f"{node.name} {reason}")


def _refusal(module: str, reason: str) -> CaptureError:
    """Return the refusal of a module by its name."""
    return CaptureError(
        f"module {module_label(module)} cannot be captured: {reason}, or leave the module outside "
        "of what is fitted"
    )
