"""The trace of a training step under fake tensors: the joint graph, without side effects.

AOTAutograd traces the module's forward and backward pass into one graph of ATen operators
(`aot_export_joint_with_descriptors`).
"""

# pyright: reportPrivateUsage=false

import random
from collections.abc import Generator, Hashable
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._functorch import config
from torch._functorch._aot_autograd.descriptors import TangentAOTInput
from torch._functorch._aot_autograd.schemas import JointWithDescriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses import FakeTensorMode
from torch.fx.traceback import annotate, preserve_node_meta
from torch.overrides import TorchFunctionMode

from headrace.memory.errors import CaptureError
from headrace.memory.measure.arguments import named_parts
from headrace.memory.measure.attributes import (
    AttributeChange,
    AttributeReader,
    attribute_changes,
    require_equal_changes,
    require_repeatable,
)
from headrace.memory.measure.captured import input_labels
from headrace.memory.measure.causal_masks import masks_as_they_are
from headrace.memory.measure.composites import as_one_operator, is_composite
from headrace.memory.measure.computation import Computation
from headrace.memory.measure.function_caches import caches_emptied
from headrace.memory.measure.linalg_checks import checks_as_operators
from headrace.memory.measure.losses import loss_alone, places_beside_loss
from headrace.memory.measure.preserve import attributes_preserved, parametrized_anew, preserved
from headrace.memory.measure.recurrent import is_recurrent, traced_layers
from headrace.memory.measure.refuse import (
    BY_VALUES,
    TENSOR_HOOKS,
    hook_counts,
    module_label,
    refuse_ordered,
    trace_refusal,
)
from headrace.memory.measure.running_averages import averages_as_tensors
from headrace.memory.measure.tensors_alone import TensorsAlone
from headrace.memory.measure.value_checks import deferred_check, is_check_of_all

_SET_DATA = torch.Tensor.data.__set__  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
_SEED = 0x6865_6164_7261_6365
"""Of torch's generator during a trace: a model that sets another one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """A training step as torch has traced it.

    Attributes
    ----------
    joint : torch's record.
    changes : of attributes by `forward`.
    beside_loss : places of outputs that take no gradients; see `headrace.memory.measure.losses`.
    """

    joint: JointWithDescriptors
    changes: tuple[AttributeChange, ...]
    beside_loss: frozenset[int]


def traced_step(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepTrace:
    """Return a step's trace, with the changes of attributes to repeat.

    Raises
    ------
    CaptureError : the step cannot be traced, or changes attributes in a way that it cannot repeat.
    """
    trace = _export(model, args, kwargs)
    if all(change.repeats for change in trace.changes):
        return trace
    _require_no_effect(model, (args, kwargs), trace)
    return replace(trace, changes=())


def _export(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, goes_on: bool = False
) -> StepTrace:
    """Trace a step, under ``torch.compiler.is_compiling()`` if the model looks at values.

    Libraries of models then leave out what they decide by values: whether a mask hides something.

    Parameters
    ----------
    goes_on : whether each call begins with the attributes that the call before has left.
    """
    try:
        return _trace(model, args, kwargs, goes_on=goes_on)
    except CaptureError as error:
        if type(error.__cause__).__name__ not in BY_VALUES:
            raise
    with torch.compiler._compile_session_context():
        return _trace(model, args, kwargs, goes_on=goes_on)


def _require_no_effect(
    model: nn.Module,
    leaves: tuple[tuple[Any, ...], dict[str, Any]],
    trace: StepTrace,
) -> None:
    """Raise a `CaptureError` unless a call behind this one changes nothing, and computes the same.

    Then what this one has changed is for speed, or noted once, and steps can do without.
    """
    try:
        with preserved(model):
            later = _export(model, *leaves, goes_on=True)
        is_equal = not later.changes and Computation.of(later.joint).equals(
            Computation.of(trace.joint)
        )
    except CaptureError:
        is_equal = False
    if not is_equal:
        require_repeatable(trace.changes)


def _trace(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, goes_on: bool
) -> StepTrace:
    entered: list[str] = []
    before = _host_state()
    torch.default_generator.manual_seed(_SEED)
    changes: list[tuple[AttributeChange, ...]] = []
    beside_loss: list[frozenset[int]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        own = nullcontext() if goes_on else attributes_preserved(model)
        with own, parametrized_anew(), caches_emptied(model), _changes_noted(model, changes):
            outputs = model(*args, **kwargs)
            beside_loss.append(places_beside_loss(outputs))
            return loss_alone(outputs)

    FakeTensorMode.cache_clear()  # results of earlier traces have lost their storages' bytes
    step = TensorsAlone(model, args, kwargs, call)
    with ExitStack() as stack:
        stack.enter_context(preserve_node_meta())
        stack.enter_context(_modules_noted(model, entered))
        stack.enter_context(averages_as_tensors(model))
        stack.enter_context(checks_as_operators())
        stack.enter_context(masks_as_they_are())
        stack.enter_context(_ForwardMode(entered))
        # as in eager execution, where the backward pass is called outside of autocast
        stack.enter_context(config.patch({"backward_pass_autocast": "off"}))
        try:
            joint = aot_export_joint_with_descriptors(stack, step, step.tensors)
        except CaptureError:
            raise
        except Exception as error:
            module = entered[-1] if entered else ""
            raise trace_refusal(error, module, args, kwargs) from error
    for node in joint.graph_module.graph.nodes:
        refuse_ordered(node)  # for some torch itself draws numbers of Python
    if _host_state() != before:
        text = "draws random numbers of Python or NumPy, which would be the same in every step"
        raise CaptureError(f"the model {text}: use torch.rand")
    if TangentAOTInput not in map(type, input_labels(joint.graph_module.graph)):
        raise CaptureError("no output of the model depends on a parameter that requires gradients")
    assert len(changes) > 1  # the first is behind the trace of shapes
    if not goes_on:
        require_equal_changes(changes)
    return StepTrace(joint=joint, changes=changes[-1], beside_loss=beside_loss[-1])


def _host_state() -> Hashable:
    """Return the states of Python's and NumPy's own generators."""
    return random.getstate(), repr(np.random.get_state())


class _ForwardMode(TorchFunctionMode):
    """Refuses hooks on tensors, new data of them, and seeds; calls composites as traces have them.

    Parameters
    ----------
    entered : names of the modules that run, the innermost last.
    """

    def __init__(self, entered: list[str]) -> None:
        super().__init__()
        self.entered = entered

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        module = module_label(self.entered[-1] if self.entered else "")
        if torch.initial_seed() != _SEED:
            raise CaptureError(
                f"module {module} sets the seed of torch's generator in its forward pass, which "
                "captured steps would not; draw such numbers before, and pass them, or leave the "
                "module outside of what is fitted"
            )
        if func in TENSOR_HOOKS:
            raise CaptureError(
                f"module {module} calls {func.__name__} "
                "in its forward pass: the hook would run while the model is captured and not in "
                "training; remove it, or leave the module outside of what is fitted"
            )
        if func == _SET_DATA:  # which traces do not see
            raise CaptureError(
                f"module {module} assigns the .data of a tensor in its forward pass, which "
                "captured steps would not; write into it in place: tensor.data.copy_(...)"
            )
        if is_check_of_all(func):
            return deferred_check(*args)
        if is_composite(func):
            return as_one_operator(func, *args, **(kwargs or {}))
        if is_recurrent(func, args):
            return traced_layers(func, *args)
        return func(*args, **(kwargs or {}))


@contextmanager
def _modules_noted(model: nn.Module, entered: list[str]) -> Generator[None]:
    """Note in every node the module that it is traced in.

    After an error `entered` has the modules that it occurred in.
    """
    open_notes: list[Any] = []

    def enter(name: str) -> None:
        entered.append(name)
        note = annotate({"module": name})
        note.__enter__()
        open_notes.append(note)

    def leave() -> None:
        if entered:
            open_notes.pop().__exit__(None, None, None)
            entered.pop()

    with ExitStack() as hooks:
        for name, module in named_parts(model):
            before = module.register_forward_pre_hook(lambda *_, name=name: enter(name))
            after = module.register_forward_hook(lambda *_: leave())
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        try:
            yield
        finally:
            while open_notes:
                # behind an error torch has set back all notes of the trace: the failure's own
                # error, or Ctrl-C, is the one to raise
                with suppress(KeyError):
                    open_notes.pop().__exit__(None, None, None)


@contextmanager
def _changes_noted(model: nn.Module, calls: list[tuple[AttributeChange, ...]]) -> Generator[None]:
    """Note what a call changes in attributes, of which none may be a tensor.

    Parameters
    ----------
    calls : changes by calls; the call's own are added.
    """
    namespaces = [
        (name, attributes)
        for name, module in named_parts(model)
        for attributes in (vars(module), module._buffers)
    ]
    before = [dict(attributes) for _, attributes in namespaces]
    reader, hooks = AttributeReader(model), hook_counts(model)
    contents = reader.read()
    yield
    for (name, after), attributes in zip(namespaces, before, strict=True):
        for attribute, content in after.items():
            if isinstance(content, torch.Tensor) and attributes.get(attribute) is not content:
                raise CaptureError(
                    f"module {module_label(name)} assigns the tensor {attribute!r} in its forward "
                    "pass, which captured steps would not; register it as a buffer and update "
                    f"it in place: self.{attribute}.copy_(...)"
                )
    calls.append(
        (
            *attribute_changes(model, contents, reader.read()),
            *(
                AttributeChange(name=hook, repeats=False)
                for hook, count in hook_counts(model).items()
                if hooks.get(hook) != count
            ),
        )
    )
