"""A module that trains by schedules, with another module's parameters and names."""

# pyright: reportPrivateUsage=false

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from html import escape
from inspect import Parameter, Signature
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from headrace.facades import offered_by
from headrace.forks import ThreadLock
from headrace.memory.errors import BudgetError, CaptureError
from headrace.memory.measure.arguments import WithLoss, forward_signature, step_arguments
from headrace.memory.measure.attributes import argument_content
from headrace.memory.measure.refuse import has_global_hooks, is_hooked
from headrace.memory.measure.step import device_of
from headrace.memory.measure.timing import memory_bytes
from headrace.memory.plan.make import parse_budget
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.run.differentiation import is_transformed
from headrace.memory.run.padding import Padding
from headrace.memory.run.prepared import PreparedStep, PreparedSteps
from headrace.memory.run.step import ScheduledStep
from headrace.units import size

_SHARED = (
    *("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"),
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
"""Attributes of a fitted module that are the model's own: the same objects."""
_OF_CLASSES = (
    *("__len__", "__iter__", "__contains__"),
    *("__getitem__", "__setitem__", "__delitem__"),
    *(name for name in vars(nn.Module) if not name.startswith("_") or name == "_apply"),
)
"""Methods that a model's class may have otherwise than `nn.Module`, and that are looked up in a
fitted module's own: of containers, and such as `parameters`, `to` or `zero_grad`."""
_DIFFERENT = (
    "a training step has other shapes, strides, autocast, trained parameters, types, modes, "
    "modules, hooks, arguments or attributes {attributes}than those with schedules, or one tensor "
    "as two arguments where they have two, or the reverse, and runs without one: its memory is not "
    "bounded (`captures` of headrace.memory.fit is how many kinds of steps have schedules)"
)
_TRANSFORMED = (
    "a fitted module is called within a transform of torch.func (grad, vmap, jvp, ...) or "
    "forward-mode differentiation, which do not run schedules: it runs without one, and its memory "
    "is not bounded. Call the module that was fitted there, which does the same without this "
    "warning"
)


@offered_by("headrace.memory")
class FittedModule(nn.Module):
    """A module whose training steps run by schedules.

    Parameters, buffers and submodules are those of `model` itself, under the same names; so are
    the `state_dict` and everything else that is not defined here. Only calls in training differ:
    with gradients enabled, the first call, and any of equal arguments and modules, runs a schedule.
    Modules are equal by their types, modes, hooks and attributes. Without gradients, where nothing
    requires one, and in evaluation, which is `model`'s own mode, the model runs as it is; within
    transforms of torch.func too, with a warning. Attributes that are set on it are the model's own.

    Parameters
    ----------
    model : whose parameters, names and modes it has.
    called : by a training step: the model, or a `WithLoss` of it. Calls then take the target too,
        as their last positional argument or by name, and return the loss, and the schedule covers
        its memory. Without a loss `forward` has the signature of the model's.
    steps : of `called`.

    Raises
    ------
    CaptureError : the model is fitted already; at a call, it cannot be captured.
    """

    def __init__(self, model: nn.Module, called: nn.Module, steps: PreparedSteps) -> None:
        super().__init__()
        if any(isinstance(module, FittedModule) for module in model.modules()):
            raise CaptureError("the model is fitted already, or a module in it: fit the original")
        for shared in _SHARED:
            self.__dict__[shared] = getattr(model, shared)
        del self.__dict__["training"]  # the model's own is found in its place
        self.__dict__["_called"] = called  # not as a submodule: names would get a prefix
        self._steps = steps
        self._budget: int | None = None
        self._padding: Padding | None = None
        self._lock = ThreadLock()
        self._warned: set[str] = set()
        self.__dict__["_original"] = model  # from here on other attributes are the model's own
        self._take_class()

    def _take_class(self) -> None:
        """Take a class of its own, with what is read of an object's class alone.

        That is the model's signature, by which trainers know which arguments `forward` has, the
        methods of containers, such as those of `nn.Sequential`, and methods of `nn.Module` that the
        model has otherwise.
        """
        names: dict[str, Any] = {
            name: getattr(FittedModule, name) for name in ("__qualname__", "__module__")
        }
        model = type(self.__dict__["_original"])
        names |= {name: _of_model(name) for name in _OF_CLASSES if _is_overridden(model, name)}
        if not isinstance(self._called, WithLoss):
            names["forward"] = self._forward_with_signature()
        own = type("FittedModule", (FittedModule,), names)
        object.__dict__["__class__"].__set__(self, own)

    def _forward_with_signature(self) -> Callable[..., Any]:
        def forward(self: FittedModule, *args: Any, **kwargs: Any) -> Any:
            return FittedModule.forward(self, *args, **kwargs)

        forward.__doc__ = FittedModule.forward.__doc__
        signature = forward_signature(self._called)
        itself = Parameter("self", Parameter.POSITIONAL_ONLY)
        forward.__signature__ = signature.replace(  # pyright: ignore[reportFunctionMemberAccess]
            parameters=[itself, *_behind_self(signature)]
        )
        return forward

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The model's class where that is a model of transformers or a layer, and else its own.

        Trainers ask by `isinstance` whether a model has a configuration that checkpoints are to
        have, and which layers have hidden states, or are to be sharded. `type` is `FittedModule`
        either way.
        """
        model = self.__dict__.get("_original")
        is_asked = any(
            hasattr(model, name) for name in ("save_pretrained", "gradient_checkpointing")
        )
        return type(model) if is_asked else type(self)

    @__class__.setter
    def __class__(self, own: type) -> None:
        """Set a class: FSDP2 derives one from that of an object, which may be the model's."""
        if not issubclass(own, FittedModule):
            model = type(self.__dict__["_original"])
            bases = tuple(type(self) if base is model else base for base in own.__bases__)
            names = {n: value for n, value in vars(own).items() if not hasattr(FittedModule, n)}
            own = type(own.__name__, bases, names)
        object.__dict__["__class__"].__set__(self, own)

    def __reduce__(self) -> tuple[Any, ...]:
        return FittedModule.__new__, (FittedModule,), self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._take_class()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model, in training by its schedule."""
        if not (self._original.training and torch.is_grad_enabled()):
            return self._called(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling():
            return self._outside_of_compiled(*args, **kwargs)
        if is_transformed():
            self._warn(_TRANSFORMED)
            return self._called(*args, **kwargs)
        args, kwargs = step_arguments(self._called, args, kwargs)
        with self._lock:
            return self._trained(args, kwargs)

    @_disable_dynamo
    def _outside_of_compiled(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model between the graphs that torch.compile makes of what calls it."""
        return FittedModule.forward(self, *args, **kwargs)

    def _trained(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a step by a schedule, with padding if that takes one, or the model as it is."""
        kind, modules, state = self._kind(args, kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [*state, *(leaf for leaf in leaves if isinstance(leaf, Tensor))]
        if not any(tensor.requires_grad for tensor in tensors):
            return self._called(*args, **kwargs)
        prepared = self._steps.find(kind, modules, args, kwargs)
        step = None if prepared is None else self._step(prepared)
        if prepared is not None and step is not None:
            return self._run(prepared, step, tensors)
        padded = None if self._padding is None else self._padded(self._padding, args, kwargs)
        if padded is not None:
            return padded()
        attributes = self._steps.differing(kind, modules)
        self._warn(_DIFFERENT, attributes=f"({attributes}) " if attributes else "")
        return self._called(*args, **kwargs)

    def _padded(
        self, padding: Padding, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Callable[[], Any] | None:
        """Return the step with padding; None where it has no schedule, or no exact outputs."""
        call = padding.padded(args, kwargs)
        if call is None:
            return None
        longer = step_arguments(self._called, (), call.arguments)
        kind, modules, state = self._kind(*longer)
        prepared = self._steps.find(kind, modules, *longer)
        step = None if prepared is None else self._step(prepared)
        if prepared is None or step is None or not padding.is_trimmable(call, prepared):
            return None
        leaves = pytree.tree_leaves(longer)
        tensors = [*state, *(leaf for leaf in leaves if isinstance(leaf, Tensor))]
        return lambda: padding.trimmed(self._run(prepared, step, tensors), call)

    def _run(self, prepared: PreparedStep, step: ScheduledStep, tensors: list[Tensor]) -> Any:
        """Run a step by a schedule, and change the attributes that `forward` changes."""
        outputs = step.of_tensors(tensors)
        for change in prepared.changes:
            change.apply(self._called)
        return outputs

    def _pad_with(self, padding: Padding) -> None:
        """Run calls of other lengths in the next larger one that has a plan."""
        self._padding = padding

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Make the schedule of training steps with such arguments, without a step.

        Raises
        ------
        CaptureError : the model cannot be captured.
        """
        args, kwargs = step_arguments(self._called, args, kwargs)
        with self._lock, torch.enable_grad():
            kind, modules, _ = self._kind(args, kwargs)
            self._steps.find(kind, modules, args, kwargs, runs=False)

    def _kind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Hashable, list[nn.Module], list[Tensor]]:
        """Return the kind of a step but for attributes, its modules and their tensors."""
        modules = list(self._called.modules())
        parameters = [p for module in modules for p in module._parameters.values() if p is not None]
        buffers = [b for module in modules for b in module._buffers.values() if b is not None]
        kind = _kind(modules, parameters, buffers, args, kwargs)
        return kind, modules, [*parameters, *buffers]

    def _step(self, prepared: PreparedStep) -> ScheduledStep | None:
        """Return the step for the budget, None if there is none."""
        limit = self._budget
        budgets = [budget for budget in prepared.steps if limit is None or budget <= limit]
        return prepared.steps[max(budgets)] if budgets else None

    def __repr__(self) -> str:
        """Return one line: the structure is the original model's."""
        called = self._called
        name = type(called.model if isinstance(called, WithLoss) else called).__name__
        budgets = " or ".join(map(size, self.budgets)) or "not planned yet"
        present = "" if self._budget is None else f", steps within {size(self._budget)}"
        return f"<FittedModule: {name}, {budgets}{present}>"

    def _repr_html_(self) -> str:
        """Return the line, and the tables of the plans, for notebooks."""
        return f"<p>{escape(repr(self))}</p>" + "".join(p._repr_html_() for p in self.plans)

    @property
    def budgets(self) -> tuple[int, ...]:
        """Budgets in bytes that there are schedules for, the least first."""
        return self._steps.budgets

    def set_budget(self, budget: int | str) -> None:
        """Run the next steps by the schedules of the largest budget that is not above this one.

        Nothing is solved. A backward pass that is still to come runs by its forward's schedule.

        Parameters
        ----------
        budget : as for `headrace.memory.fit`.

        Raises
        ------
        BudgetError : it is malformed, or below the least that there is a schedule for.
        """
        budget_bytes = parse_budget(budget, memory_bytes(device_of(self._original)))
        if self.budgets and budget_bytes < self.budgets[0]:
            budgets = ", ".join(map(size, self.budgets))
            raise BudgetError(
                f"budget is {size(budget_bytes)}, there are schedules for {budgets}: fit the "
                "model into a smaller one too",
                least_bytes=self.budgets[0],
            )
        self._budget = budget_bytes

    @property
    def plans(self) -> list[MemoryPlan]:
        """Plans of the steps so far."""
        return list(self._steps.plans)

    def _warn(self, template: str, **details: str) -> None:
        """Warn of steps that run without a schedule, of each reason once."""
        if template not in self._warned:
            self._warned.add(template)
            warnings.warn(template.format(**details), stacklevel=4)

    def train(self, mode: bool = True) -> "FittedModule":
        """Set training or evaluation, of the model too."""
        self._original.train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's state."""
        return self._original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the model's state."""
        return self._original.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._original._load_from_state_dict(*args, **kwargs)

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise CaptureError(
            "torch.nn.DataParallel copies the module to every GPU, and schedules are of one GPU: "
            "start a process for each (torchrun), or show this one a single GPU "
            "(CUDA_VISIBLE_DEVICES=0)"
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_original"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, of the model but for what is defined here, and notes of `forward`.

        A trainer that notes it looks for it here, and in the model it would hold this one.
        """
        notes_forward = hasattr(value, "__func__") and value == self.forward
        if "_original" not in self.__dict__ or notes_forward or self._is_own(name):
            super().__setattr__(name, value)
        else:
            setattr(self._original, name, value)

    def __delattr__(self, name: str) -> None:
        """Delete an attribute, of the model but for what is defined here."""
        if self._is_own(name):
            super().__delattr__(name)
        else:
            delattr(self._original, name)

    def _is_own(self, name: str) -> bool:
        return name in self.__dict__ or hasattr(type(self), name)


def _is_overridden(model: type, name: str) -> bool:
    """Return whether a model's class has a method of its own that `FittedModule` has not."""
    method = getattr(model, name, None)
    is_own = name in vars(FittedModule)
    return callable(method) and not is_own and method is not getattr(nn.Module, name, None)


def _of_model(name: str) -> Callable[..., Any]:
    """Return a method that is the model's; one that returns the model returns the fitted module."""

    def method(self: FittedModule, *args: Any, **kwargs: Any) -> Any:
        original = self.__dict__["_original"]
        result = getattr(original, name)(*args, **kwargs)
        return self if result is original else result

    return method


def _behind_self(signature: Signature) -> list[Parameter]:
    """Return the parameters as they may stand behind `self`: its name is free."""
    return [parameter for parameter in signature.parameters.values() if parameter.name != "self"]


def _kind(
    modules: list[nn.Module],
    parameters: list[nn.Parameter],
    buffers: list[Tensor],
    args: Any,
    kwargs: Mapping[str, Any],
) -> Hashable:
    """Return the kind of a step: what its trace is specific to."""
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    return (
        tuple(map(_leaf_kind, leaves)),
        _repeats([leaf for leaf in leaves if isinstance(leaf, Tensor)]),
        str(spec),
        tuple(map(_module_kind, modules)),
        has_global_hooks(),
        parametrize._cache_enabled > 0,
        tuple(
            (tensor.requires_grad, tensor.dtype, *_geometry(tensor))
            for tensor in (*parameters, *buffers)
        ),
        _repeats([*parameters, *buffers]),
        *((device, _autocast(device)) for device in ("cpu", "cuda")),
        torch.are_deterministic_algorithms_enabled(),
    )


def _repeats(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Return which tensors are the same one: for each the place where it is first."""
    first = {id(tensor): place for place, tensor in reversed(list(enumerate(tensors)))}
    return () if len(first) == len(tensors) else tuple(first[id(tensor)] for tensor in tensors)


def _module_kind(module: nn.Module) -> Hashable:
    """Return the properties of a module that a trace depends on beside attributes."""
    return type(module), module.training, is_hooked(module)


def _leaf_kind(leaf: Any) -> Hashable:
    if not isinstance(leaf, Tensor):
        return argument_content(leaf)
    return (type(leaf), *_geometry(leaf), leaf.dtype, leaf.device, leaf.requires_grad)


def _geometry(tensor: Tensor) -> tuple[Hashable, Hashable]:
    """Return a tensor's shape and strides, or the layout of a sparse one, which may have none.

    A nested one has neither.
    """
    if tensor.is_nested:
        return "nested", tensor.layout
    return tensor.shape, tensor.stride() if tensor.layout == torch.strided else tensor.layout


def _autocast(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
