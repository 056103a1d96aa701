"""Eager's own step, measured: what a schedule is compared with.

The model runs its forward and backward pass as it is, not captured, twice: for the peak of its
allocations, then for the time. Where that does not fit into memory it is not run: the step's memory
is predicted before. Whatever it does or raises, the model, its gradients and the random generators
are as before; buffers are copies for as long as it runs.
"""

# pyright: reportPrivateUsage=false

import gc
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._functorch._aot_autograd.descriptors import BufferAOTInput, InputMutationAOTOutput
from torch.utils import _pytree as pytree

from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.available import available_bytes
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.losses import loss_alone
from headrace.memory.measure.preserve import parametrized_anew, preserved
from headrace.memory.measure.sizes import rounded_bytes
from headrace.memory.measure.timing import Cost, device_name, stopwatch
from headrace.memory.operators.variant import communicates
from headrace.units import size

_MARGIN = 1.25
"""Of available memory over what a step is predicted to need: libraries allocate beside torch."""

StepArguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments of a call, by position and by name."""


def eager_cost(
    called: nn.Module,
    sample: StepArguments,
    captured: Capture,
    device: torch.device,
    *,
    digest: str,
    predicted_bytes: int,
    accumulates: bool,
    costs: MutableMapping[str, Cost],
) -> Cost | str:
    """Return the time of eager's step and its peak above what is resident, or why there is none.

    Parameters
    ----------
    called : the model, with its loss if there is one.
    digest : of the captured step.
    predicted_bytes : of the step's peak above what is resident.
    accumulates : whether gradients are resident, and added to.
    costs : earlier measurements; what is measured is added.
    """
    gradients = "added" if accumulates else "made"
    key = f"eager's step {digest}, gradients {gradients}, on {device_name(device)}"
    if key not in costs:
        beside_bytes = 2 * sum(map(rounded_bytes, called.buffers()))  # `preserved` copies them, too
        if accumulates:
            beside_bytes += sum(map(rounded_bytes, _trained(called)))
        refusal = _refusal(called, captured, device, predicted_bytes + beside_bytes)
        if refusal is not None:
            return refusal
        try:
            costs[key] = _measured(called, sample, device, accumulates=accumulates)
        except torch.OutOfMemoryError:
            gc.collect()
            torch.get_device_module(device).empty_cache()
            return "it does not fit into the device's memory"
        except Exception as error:  # of the user's code, on a sample whose values may be arbitrary
            lines = str(error).strip().splitlines()
            return f"it failed: {type(error).__name__}{f': {lines[0]}' if lines else ''}"
    return costs[key]


def _refusal(
    called: nn.Module, captured: Capture, device: torch.device, needed_bytes: int
) -> str | None:
    """Return why a step must not be run; None if it may."""
    if any(
        parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        for parameter in called.parameters()
    ):
        return "parameters have hooks on their gradients"
    if not _writes_buffers_alone(captured):
        return "it writes into parameters or inputs"
    if any(node is not None and communicates(node.target) for node in captured.nodes):
        return "it exchanges tensors with other ranks"  # which may not run it at the same time
    available = available_bytes(device)
    if available is None:
        return "it is not known how much memory is available"
    if device.type == "cpu" and dist.is_available() and dist.is_initialized():
        available //= dist.get_world_size()  # ranks of a host measure at the same time
    if _MARGIN * needed_bytes > available:
        return f"it needs about {size(needed_bytes)}, {size(available)} are available"
    return None


def _writes_buffers_alone(captured: Capture) -> bool:
    labels = captured.fx.output_node().meta["desc"]
    written = [label.mutated_input for label in labels if isinstance(label, InputMutationAOTOutput)]
    effects = [effect.args[0].meta["desc"] for effect in captured.effects]  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    return all(isinstance(label, BufferAOTInput) for label in (*written, *effects))


def _measured(
    called: nn.Module, sample: StepArguments, device: torch.device, *, accumulates: bool
) -> Cost:
    args, kwargs = pytree.tree_map_only(torch.Tensor, _argument, sample)
    parameters = _trained(called)

    def prepare() -> None:
        torch.clear_autocast_cache()  # or weights that a run has cast would be there already
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if accumulates else None

    def run() -> None:
        with parametrized_anew():
            outputs = loss_alone(called(*args, **kwargs))
        roots = [
            leaf
            for leaf in pytree.tree_leaves(outputs)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])

    try:
        with preserved(called), torch.enable_grad():
            _copy_buffers(called)
            prepare()
            peak_bytes = allocations_of(run, device, aligned=True).peak_bytes
            prepare()
            return Cost(1e6 * stopwatch(device)(run), peak_bytes)
    finally:
        torch.clear_autocast_cache()


def _argument(tensor: torch.Tensor) -> torch.Tensor:
    """Return an argument of its own gradient.

    Of a sample only shapes count elsewhere, so an index may be out of range: on the CPU that raises
    an error, and on an accelerator no kernel could run after it. There indices are zeros.
    """
    if tensor.device.type != "cpu" and not (tensor.is_floating_point() or tensor.is_complex()):
        return torch.zeros_like(tensor)
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _copy_buffers(model: nn.Module) -> None:
    """Put copies in the places of all buffers, for the step to write into."""
    copies: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                if id(buffer) not in copies:
                    copies[id(buffer)] = buffer.detach().clone()
                module._buffers[name] = copies[id(buffer)]


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
