"""The model of a communication hook: its parameters, their names, and the ranks that average them.

A `DistributedDataParallel` has all of these. A hook that a trainer registers by itself is made
before there is one, of the module alone (`headrace.compression.adapt.pair`).
"""

# torch offers no list of a model's hooks
# pyright: reportPrivateUsage=false

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headrace.compression.errors import CompressionError
from headrace.compression.names import parameter_names, unwrapped_name
from headrace.facades import public_value

DEVICES = ("cpu", "cuda")
"""Types of devices whose gradients can be compressed."""

GRADIENT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of gradients that codecs encode; others are averaged as they are."""

PYTHON_REDUCER = (
    'the model was made with torch._dynamo.config.optimize_ddp = "python_reducer", which gives '
    "hooks single gradients in place of buckets: needs True there, the default of torch"
)
"""Reason against a model of this setting."""


@public_value("headrace.compression")
class HookedModel:
    """A model whose gradients a hook averages.

    Attributes
    ----------
    parameters : that are averaged, by name (`parameter_names`).
    names : of all parameters: frozen ones, too, as DDP goes on averaging those that were frozen
        after it was made.
    group : of the ranks.
    finds_unused : whether a step may use a part of the parameters (DDP's
        ``find_unused_parameters``, or not known).
    register : has torch call a hook, given with its function of (hook, bucket), for every bucket.
    """

    parameters: Mapping[str, nn.Parameter]
    names: Mapping[Tensor, str]
    group: dist.ProcessGroup
    finds_unused: bool
    register: Callable[[object, Callable[[Any, Any], Any]], None]


def uncompiled(model: object) -> object:
    """Return the module that `torch.compile` was given, or the model itself."""
    return getattr(model, "_orig_mod", model)


def hooked_model(model: object) -> HookedModel:
    """Return a DistributedDataParallel, compiled or not, as a hook sees it.

    Raises
    ------
    CompressionError : its gradients cannot be compressed, or it has a hook.
    """
    model = uncompiled(model)
    if not isinstance(model, DistributedDataParallel):
        raise CompressionError(
            f"model is a {type(model).__name__}, needs a DistributedDataParallel; for a fully "
            "sharded model see headrace.compression.fsdp_hook"
        )
    if model._comm_hooks:
        raise CompressionError("the model has a communication hook already, needs one without")
    if model.mixed_precision is not None:
        raise CompressionError("the model has mixed_precision, needs torch.autocast in its place")
    if model.skip_all_reduce_unused_params:
        raise CompressionError(
            "the model has skip_all_reduce_unused_params, by which torch leaves out buckets that a "
            "hook waits for: needs find_unused_parameters alone"
        )
    if model._use_python_reducer:
        raise CompressionError(PYTHON_REDUCER)
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in model._module_parameters):
        raise CompressionError(
            "parameters have optimizers of _apply_optimizer_in_backward, for which torch registers "
            "a hook of its own: needs an optimizer that steps after the backward pass"
        )
    group = model.process_group
    assert group is not None
    return HookedModel(
        parameters=averaged_parameters(model.module, model.parameters_to_ignore),
        names=parameter_names(model.module),
        group=group,
        finds_unused=model.find_unused_parameters,
        register=model.register_comm_hook,
    )


def averaged_parameters(module: nn.Module, ignored: Collection[str]) -> dict[str, nn.Parameter]:
    """Return a module's parameters that have gradients, by name, if they can be compressed."""
    averaged = {
        unwrapped_name(name): parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name not in ignored
    }
    for name, part in module.named_modules():
        if (
            isinstance(part, nn.Embedding | nn.EmbeddingBag)
            and part.sparse
            and unwrapped_name(f"{name}.weight" if name else "weight") in averaged
        ):
            raise CompressionError(f"module {name!r} has sparse gradients, needs sparse=False")
    return averaged


def one_device(parameters: Mapping[str, Tensor], group: dist.ProcessGroup) -> torch.device:
    """Return the device of all parameters, if their gradients can be exchanged in a group.

    Raises
    ------
    CompressionError : parameters are on several devices or of an unknown type, or the group has no
        backend for payloads in host memory.
    """
    device = torch.device("cpu")
    for number, (name, parameter) in enumerate(parameters.items()):
        device = device if number else parameter.device
        if parameter.device != device or device.type not in DEVICES:
            raise CompressionError(
                f"parameter {name!r} is on {parameter.device}, needs the CPU or a CUDA device, the "
                "same for all parameters"
            )
    if device.type != "cpu" and torch.device("cpu") not in group._device_types:
        raise CompressionError(
            f"parameters are on {device} and the process group has no backend for the CPU, by "
            'which their payloads go: needs init_process_group("headrace"), or one for both such '
            'as "cpu:gloo,cuda:nccl"'
        )
    return device
