"""The profile of a model's training step: captured, its operators timed on the device at hand."""

# pyright: reportPrivateUsage=false

import copy
import hashlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import torch
from torch import nn
from torch._functorch._aot_autograd.descriptors import PlainAOTInput
from torch._subclasses import FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from headrace.memory.errors import CaptureError
from headrace.memory.exactness import Exactness
from headrace.memory.measure.accumulate import accumulating
from headrace.memory.measure.allocations import library_bytes
from headrace.memory.measure.arguments import WithLoss, forward_signature
from headrace.memory.measure.capture import capture
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.eager import StepArguments, eager_cost
from headrace.memory.measure.implementations import with_implementations
from headrace.memory.measure.preserve import preserved
from headrace.memory.measure.read_values import ValuesReadAs
from headrace.memory.measure.sizes import ROUNDING, inner_tensors
from headrace.memory.measure.timing import (
    Cost,
    Roofline,
    device_name,
    measured_graph,
    modelled,
    relative_spread,
)
from headrace.memory.plan.verify import verify
from headrace.memory.profile import SPREAD, EagerStep, MemoryProfile, ModelInput
from headrace.memory.schedule import plain_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConditions:
    """Conditions of a training step that its memory depends on, beside model and sample.

    Attributes
    ----------
    loss : of the model's output and a target, which is then the sample's last argument.
    optimizer : its state is resident.
    accumulates : whether gradients are kept between steps: they are resident, too.
    ddp : whether DistributedDataParallel is around the model: its buckets, of all gradients' size,
        are resident.
    offload : whether activations may be stored in the host's memory.
    """

    loss: nn.Module | None = None
    optimizer: Optimizer | None = None
    accumulates: bool = False
    ddp: bool = False
    offload: bool = False

    def check(self, device: torch.device) -> None:
        """Check that a device's steps can have the conditions.

        Raises
        ------
        CaptureError : the loss or the optimizer is of another type; there is nothing to offload
            from.
        """
        loss, optimizer = cast(object, self.loss), cast(object, self.optimizer)
        if not isinstance(loss, nn.Module | None):
            # a function's closure and defaults could change between steps, unseen
            raise CaptureError(
                f"the loss is a {type(loss).__name__}, needs a torch module, such as "
                "torch.nn.CrossEntropyLoss(): write a function as the forward of one"
            )
        if not isinstance(optimizer, Optimizer | None):
            raise CaptureError(
                f"the optimizer is a {type(optimizer).__name__}, needs one of torch.optim"
            )
        if self.offload and device.type == "cpu":
            raise CaptureError(
                "offload needs a model on an accelerator: this one's activations are in the host's "
                "memory already"
            )

    def called(self, model: nn.Module) -> nn.Module:
        """Return the module that a step calls: the model, with the loss if there is one."""
        return model if self.loss is None else WithLoss(model, self.loss)

    def __deepcopy__(self, _copied: Mapping[int, Any]) -> Self:
        return self  # a copied model has no optimizer of its own, and its state would take memory

    def implemented(self, traced: Capture, exactness: Exactness) -> Capture:
        """Return a traced step with all implementations of an exactness.

        Gradients are added in it where they accumulate outside of buckets.
        """
        captured = with_implementations(traced, exactness, offload=self.offload)
        if not self.accumulates or self.ddp:
            return captured
        return accumulating(captured, tied=exactness is not Exactness.EXACT)


def sample_of(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a sample stands for: one, a tuple or list, or by name."""
    if isinstance(sample, Mapping):
        return (), dict(sample)
    return (tuple(sample) if isinstance(sample, tuple | list) else (sample,)), {}


def require_arguments(called: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise a `CaptureError` if a sample has no arguments, and a call needs some.

    Parameters
    ----------
    called : the model, or a `WithLoss` of it.
    """
    if args or kwargs:
        return
    has_loss = isinstance(called, WithLoss)
    try:
        forward_signature(called).bind()
        missing = has_loss  # whose signature takes whatever the model and the loss do
    except TypeError:
        missing = True
    if missing:
        name = type(called.model if isinstance(called, WithLoss) else called).__name__
        target = ", the loss's target behind them" if has_loss else ""
        raise CaptureError(
            f"the sample is empty, needs the arguments of one call of {name}{target}: a tensor, "
            "several in a tuple, or a mapping of them by name; several samples are a list of "
            "tuples or mappings"
        )


def require_trainable(model: Any) -> None:
    """Raise a `CaptureError` unless training steps of a model can be captured."""
    if not isinstance(model, nn.Module):
        reason = f"a {type(model).__name__}, needs a torch module"
    elif any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        reason = "in DistributedDataParallel, which goes around: DDP(fit(model, ddp=True))"
    elif any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        reason = "lazy, needs the shapes of all parameters: call it once before"
    elif device_of(model).type == "meta":
        reason = "on the meta device, needs values: model.to_empty(device=...)"
    elif not model.training:
        reason = "in evaluation, needs training mode: call model.train()"
    else:
        return
    raise CaptureError(f"the model is {reason}")


def capture_step(
    model: nn.Module, sample: Any, job: StepConditions, exactness: Exactness = Exactness.ROUNDED
) -> Capture:
    """Trace a training step, with all implementations of its operators of an exactness.

    Raises
    ------
    CaptureError : the model cannot be traced; see `headrace.memory.measure.capture`.
    """
    require_trainable(model)
    args, kwargs = sample_of(sample)
    require_arguments(job.called(model), args, kwargs)
    return job.implemented(capture(job.called(model), args, kwargs), exactness)


def profile_step(
    model: nn.Module,
    captured: Capture,
    job: StepConditions,
    *,
    name: str | None = None,
    device: Roofline | None = None,
    costs: MutableMapping[str, Cost] | None = None,
    single_runs: bool = False,
    sample: StepArguments | None = None,
    report: Callable[[str], None] = lambda _activity: None,
) -> MemoryProfile:
    """Return the profile of a captured step.

    Parameters
    ----------
    name : of the model; else its class.
    device : a model of a device that is not at hand; else the model's own is measured.
    costs : of operators that were measured before; what is measured is added.
    single_runs : whether operators are timed in one run each; see `measured_graph`.
    sample : arguments for a step of the model as it is, which is measured if it fits into memory.
    report : called with what is measured.

    Raises
    ------
    CaptureError : the model's parameters are on several devices.
    """
    step = unmeasured_profile(model, captured, job, name=name)
    if device is None:
        costs = {} if costs is None else costs
        operators = captured.graph.operators
        total = sum(len(operator.implementations) for operator in operators)
        graph = measured_graph(
            captured,
            device_of(model),
            costs,
            single_runs=single_runs,
            report=lambda count: report(f"measuring operators: {count} of {total} implementations"),
        )
        spread = relative_spread(costs.values())
        measured = replace(
            step,
            graph=replace(graph, resident=step.graph.resident),
            provenance={**step.provenance, **({} if spread is None else {SPREAD: spread})},
        )
        report("measuring a step of the model as it is")
        return (
            measured
            if sample is None
            else _with_eager(measured, model, captured, job, sample, costs)
        )
    return replace(
        step,
        graph=replace(modelled(captured, device), resident=step.graph.resident),
        device=device.name,
        provenance={"kind": "roofline", "source": "data sheet"},
    )


def _with_eager(
    profile: MemoryProfile,
    model: nn.Module,
    captured: Capture,
    job: StepConditions,
    sample: StepArguments,
    costs: MutableMapping[str, Cost],
) -> MemoryProfile:
    """Return a measured profile with eager's step, or with the reason why there is none."""
    resident = dict(profile.graph.resident)
    predicted_bytes = verify(profile.graph, plain_schedule(profile.graph)).peak_bytes
    measured = eager_cost(
        job.called(model),
        sample,
        captured,
        device_of(model),
        digest=profile.model_digest,
        predicted_bytes=predicted_bytes - sum(resident.values()),
        accumulates=job.accumulates,
        costs=costs,
    )
    if isinstance(measured, str):
        return replace(profile, provenance={**profile.provenance, "eager": measured})
    resident.pop("generators", None)  # states are copied for operators that run again
    peak_bytes = sum(resident.values()) + measured.workspace_bytes
    return replace(profile, eager=EagerStep(peak_bytes=peak_bytes, time_us=measured.time_us))


def unmeasured_profile(
    model: nn.Module, captured: Capture, job: StepConditions, *, name: str | None = None
) -> MemoryProfile:
    """Return the profile of a captured step on its model's device, with all costs 0.

    Raises
    ------
    CaptureError : the model's parameters are on several devices.
    """
    where = device_of(model)
    resident = dict(captured.graph.resident)
    rounding = ROUNDING.get(where.type, 1)
    if job.optimizer is not None:
        resident["optimizer"] = optimizer_bytes(job.optimizer, rounding)
    if job.accumulates:
        resident["gradients"] = _gradient_bytes(job.called(model), rounding)
    if job.ddp:  # which goes around the model, without a loss
        resident["buckets"] = _gradient_bytes(model, rounding)
    if library_nbytes := library_bytes(where):
        resident["libraries"] = library_nbytes
    return MemoryProfile(
        graph=replace(captured.graph, resident=resident),
        model=name or type(model).__name__,
        model_digest=_digest(captured),
        device=device_name(where),
        torch=torch.__version__.partition("+")[0],
        inputs=_inputs(captured),
        provenance={"kind": "measured", "source": "headrace memory measure"},
    )


def _gradient_bytes(module: nn.Module, rounding: int) -> int:
    return sum(
        _rounded(parameter.nbytes, rounding)
        for parameter in module.parameters()
        if parameter.requires_grad
    )


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's parameters.

    Raises
    ------
    CaptureError : they are on several.
    """
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1:
        raise CaptureError(
            f"parameters are on {', '.join(sorted(map(str, devices)))}, needs one device"
        )
    return devices.pop() if devices else torch.device("cpu")


def _digest(captured: Capture) -> str:
    """Return the SHA-256 of the traced step: its operators, constants, and the inputs' shapes."""
    digest = hashlib.sha256(captured.module.code.encode())
    for node in captured.fx.find_nodes(op="placeholder"):
        value = node.meta["val"]
        geometry = (tuple(value.shape), value.dtype, value.stride()) if _is_tensor(value) else value
        digest.update(f"{node.name} {geometry}\n".encode())
    return digest.hexdigest()


def _inputs(captured: Capture) -> tuple[ModelInput, ...]:
    inputs: list[ModelInput] = []
    for node in captured.fx.find_nodes(op="placeholder"):
        label, value = node.meta.get("desc"), node.meta["val"]
        label = getattr(label, "base_of", label)
        if isinstance(label, PlainAOTInput) and _is_tensor(value):
            name, dtype = captured.tensor_names[label.idx], str(value.dtype).removeprefix("torch.")
            inputs.append(ModelInput(name=name, shape=tuple(value.shape), dtype=dtype))
    return tuple(inputs)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def optimizer_bytes(optimizer: Optimizer, rounding: int = 1) -> int:
    """Return the bytes of an optimizer's state: as it is, or as a first step would make it.

    Raises
    ------
    CaptureError : a first step cannot be followed without its values.
    """
    try:
        with preserved(optimizer):
            state = optimizer.state or _first_state(optimizer)
    except Exception as error:
        raise CaptureError(
            f"the state of {type(optimizer).__name__} is not known before its first step: fit "
            f"after one ({type(error).__name__}: {error})"
        ) from error
    return sum(
        _rounded(inner.nbytes, rounding)
        for leaf in pytree.tree_leaves(list(state.values()))
        if _is_tensor(leaf)
        for inner in inner_tensors(leaf)
    )


def _first_state(optimizer: Optimizer) -> Mapping[Any, Any]:
    """Return the state after a step of an equal optimizer on fake parameters and gradients."""
    # a learning rate may be a tensor
    with FakeTensorMode(allow_non_fake_inputs=True), ValuesReadAs(1):

        def fake(parameter: torch.Tensor) -> nn.Parameter:
            value = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
            parameter_copy = nn.Parameter(value, requires_grad=parameter.requires_grad)
            if parameter.requires_grad:  # frozen ones have no state
                parameter_copy.grad = torch.empty_like(parameter_copy)
            return parameter_copy

        groups = [
            {**group, "params": [fake(parameter) for parameter in group["params"]]}
            for group in optimizer.param_groups
        ]
        equal = copy.copy(optimizer)  # its class may take other arguments than its defaults
        equal.state, equal.param_groups = defaultdict(dict), groups
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            equal.__dict__[hooks] = OrderedDict()
        # a scheduler of learning rates keeps a step of the original in the instance
        equal.__dict__.pop("step", None)
        equal.step()
        return equal.state


def _rounded(nbytes: int, rounding: int) -> int:
    return -(-nbytes // rounding) * rounding
