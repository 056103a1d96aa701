"""A training step on fake tensors: the memory of eager's step, and its capture, of a meta model.

Without values, weights or the device's memory. Inside of operators nothing is seen: workspaces
count as 0.
"""

# pyright: reportPrivateUsage=false

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from headrace.memory.errors import CaptureError
from headrace.memory.measure.eager import StepArguments
from headrace.memory.measure.live_bytes import LiveKinds
from headrace.memory.measure.read_values import ValuesReadAs
from headrace.memory.measure.refuse import BY_VALUES
from headrace.memory.measure.sizes import ROUNDING

PARAMETERS, BUFFERS, INPUTS = "parameters", "buffers", "inputs"
GRADIENTS, OPTIMIZER = "gradients", "optimizer"
ACTIVATIONS = LiveKinds.ACTIVATIONS
OWN_SAMPLE = "headrace memory measure takes a function that makes a model and its inputs"
"""Remedy where a model by its name, or a sample of its, cannot be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerBytes:
    """Memory of eager's training step, in bytes.

    Attributes
    ----------
    most : of each kind at any time of the step.
    at_peak : of each kind when most is allocated in all.
    passes_bytes : most in the forward and backward pass.
    stepping_bytes : most in the optimizer's step.
    """

    most: Mapping[str, int]
    at_peak: Mapping[str, int]
    passes_bytes: int
    stepping_bytes: int

    @property
    def in_optimizer(self) -> bool:
        """True where most is allocated in the optimizer's step."""
        return self.stepping_bytes > self.passes_bytes


@contextmanager
def failures_unlogged() -> Generator[None]:
    """Let torch log no operator that fails on fake tensors: the error that is raised says it."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def on_fake_tensors(model: nn.Module) -> Generator[FakeTensorMode]:
    """Put fake tensors of the CPU in the places of a meta model's parameters and buffers."""
    places = [
        (tensors, name, tensor)
        for module in model.modules()
        for tensors in (module._parameters, module._buffers)
        for name, tensor in tensors.items()
        if tensor is not None
    ]
    fakes: dict[int, torch.Tensor] = {}
    try:
        with failures_unlogged(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            for tensors, name, tensor in places:
                if id(tensor) not in fakes:
                    fakes[id(tensor)] = _on_cpu(tensor)
                tensors[name] = cast(Any, fakes[id(tensor)])
            yield mode
    finally:
        for tensors, name, tensor in places:
            tensors[name] = cast(Any, tensor)


def on_cpu(arguments: StepArguments) -> StepArguments:
    """Return fake arguments for those of the meta device, within `on_fake_tensors`."""
    return pytree.tree_map_only(torch.Tensor, _on_cpu, arguments)


def eager_bytes(
    called: nn.Module, arguments: StepArguments, optimizer: type[Optimizer] | None
) -> EagerBytes:
    """Return the memory of a training step, from the forward pass to the optimizer's step.

    The optimizer's state exists from the beginning, as in every step but the first; gradients are
    not, as `zero_grad` leaves none.

    Parameters
    ----------
    called : a meta model that returns its loss.
    optimizer : its class, with defaults; None: there is none.

    Raises
    ------
    CaptureError : the model, or the optimizer, cannot be run on fake tensors.
    """
    try:
        return _eager_bytes(called, arguments, optimizer)
    except Exception as error:
        cause = error.__cause__ if isinstance(error, _OptimizerError) else error
        if type(cause).__name__ not in BY_VALUES:
            raise _refusal(error) from error
    with torch.compiler._compile_session_context():  # libraries then decide less by values
        try:
            return _eager_bytes(called, arguments, optimizer, reading=ValuesReadAs(1))
        except Exception as error:
            refusal = _refusal(error)
            refusal.__cause__ = error
        with suppress(Exception):  # of what few tokens have, such as global attention
            return _eager_bytes(called, arguments, optimizer, reading=ValuesReadAs(0))
    raise refusal


class _OptimizerError(Exception):
    """An optimizer's name, where its step fails; the failure is the cause."""


def _refusal(error: Exception) -> CaptureError:
    subject, remedy, cause = "model", f": {OWN_SAMPLE}", error
    if isinstance(error, _OptimizerError) and isinstance(error.__cause__, Exception):
        subject = f"step of the optimizer {error}"
        remedy, cause = ": estimate with one that can, or with none", error.__cause__
    reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    return CaptureError(f"the {subject} cannot be run on fake tensors: {reason}{remedy}")


def _eager_bytes(
    called: nn.Module,
    arguments: StepArguments,
    optimizer: type[Optimizer] | None,
    *,
    reading: AbstractContextManager[Any] | None = None,
) -> EagerBytes:
    live = LiveKinds(ROUNDING["cpu"])
    with on_fake_tensors(called):
        args, kwargs = on_cpu(arguments)
        parameters = [parameter for parameter in called.parameters() if parameter.requires_grad]
        live.name(PARAMETERS, list(called.parameters()))
        live.name(BUFFERS, list(called.buffers()))
        live.name(INPUTS, (args, kwargs))
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(
                lambda parameter: live.name(GRADIENTS, parameter.grad)
            )
        with live, reading or nullcontext():
            called(*args, **kwargs).backward()
        in_passes = dict(live.at_peak)
        most = dict(live.most)
        try:
            state_bytes, beside_bytes = _optimizer_bytes(parameters, optimizer)
        except Exception as error:
            assert optimizer is not None
            raise _OptimizerError(optimizer.__name__) from error
        gradients = live.bytes_of(parameter.grad for parameter in parameters)
    fixed = {kind: most.get(kind, 0) for kind in (PARAMETERS, BUFFERS, INPUTS)}
    passes = {**fixed, **in_passes, OPTIMIZER: state_bytes}
    step = {**fixed, GRADIENTS: gradients, ACTIVATIONS: beside_bytes, OPTIMIZER: state_bytes}
    return EagerBytes(
        most={**most, OPTIMIZER: state_bytes},
        at_peak=max(passes, step, key=lambda kinds: sum(kinds.values())),
        passes_bytes=sum(passes.values()),
        stepping_bytes=sum(step.values()),
    )


def _optimizer_bytes(
    parameters: list[nn.Parameter], optimizer: type[Optimizer] | None
) -> tuple[int, int]:
    """Return bytes of an optimizer's state, and most that its step needs beside it.

    On the CPU parameters are updated one after the other, so the largest needs most.
    """
    if optimizer is None:
        return 0, 0
    make = cast(Callable[..., Any], optimizer)
    stepping = make(parameters)
    state = LiveKinds(ROUNDING["cpu"])
    with torch.no_grad(), ValuesReadAs(1):  # Adafactor scales by norms that it reads
        stepping.step()
    state.name(OPTIMIZER, list(stepping.state.values()))
    largest = max(parameters, key=lambda parameter: parameter.nbytes)
    alone = make([largest])
    alone.state[largest] = stepping.state[largest]
    beside = LiveKinds(ROUNDING["cpu"])
    beside.name(OPTIMIZER, (largest, largest.grad, list(alone.state.values())))
    before = beside.now
    with torch.no_grad(), beside, ValuesReadAs(1):
        alone.step()
    return state.now, max(sum(beside.at_peak.values()) - before, 0)


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    value = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(value, requires_grad=tensor.requires_grad)
    return value
