"""Capture of a training step: the joint graph of a module, as operators on storages.

AOTAutograd traces the module's forward and backward pass under fake tensors into one graph of ATen
operators, without side effects (`aot_export_joint_with_descriptors`). Here views of a storage are
told from operators that create storages, and the nodes of the forward from those of the backward
pass. The joint graph is kept: schedules are run on it (`headrace.memory.run`).
"""

# pyright: reportPrivateUsage=false

import operator
import random
import re
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import nn
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    InputMutationAOTOutput,
    ParamAOTInput,
    TangentAOTInput,
)
from torch._functorch._aot_autograd.schemas import JointWithDescriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._ops import OpOverload
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.fx.traceback import annotate, preserve_node_meta
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from headrace.memory.errors import CaptureError
from headrace.memory.graph import Graph, Implementation, Operator, Storage
from headrace.memory.measure.arguments import bound_arguments, split_target
from headrace.memory.measure.attributes import (
    AttributeChange,
    AttributeReader,
    Name,
    attribute_changes,
    require_equal_changes,
    require_repeatable,
)
from headrace.memory.measure.computation import Computation
from headrace.memory.measure.losses import loss_alone
from headrace.memory.measure.preserve import attributes_preserved, preserved
from headrace.memory.measure.recurrent import RECURRENT, decomposed
from headrace.memory.measure.running_averages import averages_as_tensors
from headrace.memory.measure.tensors_alone import TensorsAlone
from headrace.memory.operators import is_rewritten, rewrite
from headrace.memory.operators.normalization import correct_statistics
from headrace.memory.operators.variant import argument

aten = torch.ops.aten
ROUNDING = {"cpu": 64, "cuda": 512}
"""Granularity of allocations in bytes: CPU allocator's alignment, caching allocator's blocks."""
PURE_NAMESPACES = ("aten", "prims", "torchvision")
"""Operators of others may have effects that their schema does not name: they are run once."""
STATE_BYTES = 5056
"""State of the CPU's random generator; a CUDA generator's has 16."""


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


@dataclass(frozen=True, slots=True)
class Stored:
    """Argument of a `TracedCall`: the latest instance of a storage that no node computes."""

    storage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """Computation of an operator by an implementation that is not its own node.

    Attributes
    ----------
    target : a function that returns a tuple of `outputs`, or as the operator's node one tensor.
    args, kwargs : constants, nodes of the joint graph, and `Stored`.
    outputs : storages of what it returns.
    draws : whether it draws random numbers.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: tuple[int, ...]
    draws: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A training step as traced.

    Attributes
    ----------
    graph : its operators and storages; times and workspaces are 0 until they are measured.
    module : the joint graph.
    joint : torch's record of the trace; None where torch asked for the two graphs alone.
    nodes : of the joint graph, by operator; None for the loss outside of the graph.
    storage_of : storage of each node's value that is one tensor and no input, parameter or buffer.
    bases : by storage, the node that creates it and the index of the output (None: it has one).
    views : nodes that compute nothing: other views of a storage, or elements of a tuple.
    random : forward operators that draw random numbers, and the device of their generator.
    effects : nodes that write into inputs at the end of the forward pass.
    calls : by operator and implementation, where it is not the operator's node itself.
    examples : fake tensors of storages that only calls create.
    fills : of these, a value that is valid in every element, where that is not 0.
    hosted : of these, those in the host's memory; their storages have 0 bytes.
    accumulated : by operator of the backward pass, positions of the inputs whose gradients are
        added to those of before once it has run (`headrace.memory.measure.accumulate`).
    changes : of attributes by `forward`, to be repeated behind each step.
    """

    graph: Graph
    module: GraphModule
    joint: JointWithDescriptors | None = None
    nodes: tuple[Node | None, ...]
    storage_of: Mapping[Node, int]
    bases: tuple[tuple[Node, int | None], ...]
    views: frozenset[Node]
    random: Mapping[int, torch.device]
    effects: tuple[Node, ...] = ()
    calls: Mapping[tuple[int, int], TracedCall] = field(
        default_factory=dict[tuple[int, int], TracedCall]
    )
    examples: Mapping[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    fills: Mapping[int, int] = field(default_factory=dict[int, int])
    hosted: frozenset[int] = frozenset()
    accumulated: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    changes: tuple[AttributeChange, ...] = ()

    def example(self, storage: int) -> torch.Tensor:
        """Return the fake tensor that spans a storage."""
        if storage in self.examples:
            return self.examples[storage]
        node, index = self.bases[storage]
        return node.meta["val"] if index is None else node.meta["val"][index]

    @property
    def fx(self) -> FxGraph:
        """The joint graph."""
        return self.module.graph

    @property
    def forward_outputs(self) -> list[Any]:
        """Nodes that the forward pass returns: new values of buffers, then the module's outputs."""
        return _outputs(self.fx)[0]

    @property
    def gradients(self) -> list[Any]:
        """Nodes that the backward pass returns, for every input; None if it needs no gradient."""
        return _outputs(self.fx)[1]


def capture(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Capture:
    """Trace a training step of `model`, in the mode that it is in.

    Parameters
    ----------
    args, kwargs : a sample of the model's arguments; of tensors only shape, type and device count.

    Raises
    ------
    CaptureError
        If the model has hooks or cannot be traced: control flow on values, side effects, sparse
        tensors, random numbers of other generators than the default one, operators without a fake
        implementation, nothing to differentiate.
    """
    _refuse_hooks(model)
    args, kwargs = step_arguments(model, args, kwargs or {})
    with preserved(model):
        leaves = pytree.tree_map_only(torch.Tensor, _leaf, (tuple(args), dict(kwargs or {})))
        joint, changes = _export(model, *leaves)
        if not all(change.repeats for change in changes):
            _require_no_effect(model, leaves, joint, changes)
            changes = ()
    _drop_unread_statistics(joint.graph_module.graph)
    correct_statistics(joint.graph_module.graph)
    rewrite(joint.graph_module.graph)
    joint.graph_module.recompile()  # its code is text alone: constants have no names in it
    return replace(_Reader(joint.graph_module).read(), joint=joint, changes=changes)


def read_joint(module: GraphModule) -> Capture:
    """Read a joint graph that torch traced, with operators alone that a compiler knows.

    Random operators run once: a second run would need the generator's state of the first.

    Raises
    ------
    CaptureError : shapes are dynamic, tensors are sparse, an operator is of higher order or draws
        from another generator than the default one.
    """
    for node in module.graph.find_nodes(op="placeholder"):
        if isinstance(node.meta["val"], torch.SymInt):
            raise CaptureError("shapes are dynamic, need fixed ones: torch.compile(dynamic=False)")
    found = _Reader(module).read()
    operators = tuple(
        replace(each, again=each.again and index not in found.random)
        for index, each in enumerate(found.graph.operators)
    )
    resident = {name: size for name, size in found.graph.resident.items() if name != "generators"}
    graph = replace(found.graph, operators=operators, resident=resident)
    return replace(found, graph=graph, random={})


def _leaf(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor that no operator of before has made: the trace looks for its gradient."""
    return value.detach().requires_grad_(value.requires_grad)


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes of modules with hooks that a trace cannot have."""
TENSOR_HOOKS = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
"""Methods that register hooks that a trace cannot have."""


def is_hooked(module: nn.Module) -> bool:
    """Return whether a module has hooks that a trace cannot have."""
    return any(map(module.__dict__.get, HOOKS))


def _refuse_hooks(model: nn.Module) -> None:
    for name, module in model.named_modules():
        for kind in HOOKS:
            if getattr(module, kind):
                raise CaptureError(
                    f"module {_named(name)} has {kind[1:].replace('_', ' ')}, which would run "
                    "while the model is captured and not in training; remove them"
                )


def _named(name: str) -> str:
    return repr(name) if name else "itself (the model)"


_BY_VALUES = ("DataDependentOutputException", "DynamicOutputShapeException")
_REASONS = {
    _BY_VALUES[0]: "it has control flow on values (.item(), if); use torch.where",
    _BY_VALUES[1]: "its shapes depend on values (x[x > 0]); use torch.where",
    "all Tensors to FakeTensors": "it reads a tensor that is no buffer; use register_buffer",
    "entirely functional graph": "it writes into a tensor that is no buffer; use register_buffer",
    "need to register a pytree": "it returns an object ({}); use a tuple or dict, "
    "switch that off (a cache of transformers: config.use_cache = False of all modules that have a "
    "config), or register a pytree",
    "use_reentrant=True": "it calls torch.utils.checkpoint with use_reentrant=True; remove the "
    "checkpoint, as the schedule decides what is computed again, or pass use_reentrant=False",
}
"""Reasons and remedies by parts of torch's errors."""


def _require_no_effect(
    model: nn.Module,
    leaves: tuple[tuple[Any, ...], dict[str, Any]],
    joint: JointWithDescriptors,
    changes: tuple[AttributeChange, ...],
) -> None:
    """Raise a `CaptureError` unless a call behind this one changes nothing, and computes the same.

    Then what this one has changed is for speed, or noted once, and steps can do without.
    """
    try:
        with preserved(model):
            later, later_changes = _export(model, *leaves, goes_on=True)
        is_equal = not later_changes and Computation.of(later).equals(Computation.of(joint))
    except CaptureError:
        is_equal = False
    if not is_equal:
        require_repeatable(changes)


def _export(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, goes_on: bool = False
) -> tuple[JointWithDescriptors, tuple[AttributeChange, ...]]:
    """Trace a step, under ``torch.compiler.is_compiling()`` if the model looks at values.

    Libraries of models then leave out what they decide by values: whether a mask hides something.

    Parameters
    ----------
    goes_on : whether each call begins with the attributes that the call before has left.
    """
    try:
        return _trace(model, args, kwargs, goes_on=goes_on)
    except CaptureError as error:
        if type(error.__cause__).__name__ not in _BY_VALUES:
            raise
    with torch.compiler._compile_session_context():
        return _trace(model, args, kwargs, goes_on=goes_on)


def _trace(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, goes_on: bool
) -> tuple[JointWithDescriptors, tuple[AttributeChange, ...]]:
    entered: list[str] = []
    before = _host_state()
    changes: list[tuple[AttributeChange, ...]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        own = nullcontext() if goes_on else attributes_preserved(model)
        with own, _changes_noted(model, changes):
            return loss_alone(model(*args, **kwargs))

    step = TensorsAlone(model, args, kwargs, call)
    with ExitStack() as stack:
        stack.enter_context(preserve_node_meta())
        stack.enter_context(_modules_noted(model, entered))
        stack.enter_context(averages_as_tensors(model))
        stack.enter_context(_ForwardMode(entered))
        try:
            joint = aot_export_joint_with_descriptors(stack, step, step.tensors)
        except CaptureError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).strip()}"
            sample = f"check that the model takes the sample ({_shapes(args, kwargs)})"
            known = (
                reason.format(*re.findall(r"<class '(?:.*\.)?(\w+)'>", text), "unknown")
                for sign, reason in _REASONS.items()
                if sign in text
            )
            raise CaptureError(
                f"module {_named(entered[-1] if entered else '')} cannot be captured: "
                f"{next(known, f'{text.splitlines()[0]}; {sample}')}, or leave the module outside "
                "of what is fitted"
            ) from error
    if _host_state() != before:
        text = "draws random numbers of Python or NumPy, which would be the same in every step"
        raise CaptureError(f"the model {text}: use torch.rand")
    if TangentAOTInput not in map(type, _labels(joint.graph_module.graph)):
        raise CaptureError("no output of the model depends on a parameter that requires gradients")
    assert len(changes) > 1  # the first is behind the trace of shapes
    if not goes_on:
        require_equal_changes(changes)
    return joint, changes[-1]


def _host_state() -> Hashable:
    """Return what changes where Python's or NumPy's own generator is drawn from."""
    return random.getstate(), repr(np.random.get_state())


class _ForwardMode(TorchFunctionMode):
    """Traces a forward pass: refuses hooks on tensors, and decomposes recurrent layers.

    Parameters
    ----------
    entered : names of the modules that run, the innermost last.
    """

    def __init__(self, entered: list[str]) -> None:
        super().__init__()
        self.entered = entered

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        if func in TENSOR_HOOKS:
            raise CaptureError(
                f"module {_named(self.entered[-1] if self.entered else '')} calls {func.__name__} "
                "in its forward pass: the hook would run while the model is captured and not in "
                "training; remove it, or leave the module outside of what is fitted"
            )
        if func in RECURRENT:
            return decomposed(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    tensors = [
        each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)
    ]
    return ", ".join(f"{each.dtype} {tuple(each.shape)}".removeprefix("torch.") for each in tensors)


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
        for name, module in model.named_modules():
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
    every = [(name, each) for name, of in model.named_modules() for each in (vars(of), of._buffers)]
    before = [dict(each) for _, each in every]
    reader, hooks = AttributeReader(model), _hook_counts(model)
    contents = reader.read()
    yield
    for (name, now), first in zip(every, before, strict=True):
        for attribute, value in now.items():
            if isinstance(value, torch.Tensor) and first.get(attribute) is not value:
                raise CaptureError(
                    f"module {_named(name)} assigns the tensor {attribute!r} in its forward "
                    "pass, which captured steps would not; register it as a buffer and update "
                    f"it in place: self.{attribute}.copy_(...)"
                )
    calls.append(
        (
            *attribute_changes(model, contents, reader.read()),
            *(
                AttributeChange(name=hook, repeats=False)
                for hook, count in _hook_counts(model).items()
                if hooks.get(hook) != count
            ),
        )
    )


def _hook_counts(model: nn.Module) -> dict[Name, int]:
    return {
        (name, kind): len(getattr(module, kind))
        for name, module in model.named_modules()
        for kind in HOOKS
    }


def _drop_unread_statistics(graph: FxGraph) -> None:
    """Cut the inputs of batch normalization's backward that it does not read in training mode."""
    for node in graph.nodes:
        if node.target is aten.native_batch_norm_backward.default and node.args[7]:
            node.update_arg(3, None)
            node.update_arg(4, None)


def _labels(graph: FxGraph) -> list[Any]:
    return [node.meta.get("desc") for node in graph.find_nodes(op="placeholder")]


def _outputs(graph: FxGraph) -> tuple[list[Any], list[Any]]:
    """Return what the forward pass returns, and the gradients: one for every input of the step."""
    (returned,) = graph.output_node().args
    outputs = list(cast(Sequence[Any], returned))
    count = len(outputs) - sum(not isinstance(each, TangentAOTInput) for each in _labels(graph))
    return outputs[:count], outputs[count:]


class _Reader:
    """Reads the joint graph into operators and storages."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.fx = module.graph
        self.effects = tuple(filter(_is_effect, self.fx.nodes))
        self.storages: list[Storage] = []
        self.bases: list[tuple[Node, int | None]] = []
        self.known: set[int] = set()  # handles
        self.storage_of: dict[Node, int] = {}
        self.elements: dict[Node, dict[int, int]] = {}  # storages of nodes with several outputs
        self.views: set[Node] = set()

    def read(self) -> Capture:
        for node in self.fx.nodes:
            _refuse_unreadable(node)
        inputs = self.fx.find_nodes(op="placeholder")
        tangents = [n for n in inputs if isinstance(n.meta["desc"], TangentAOTInput)]
        primals = [n for n in inputs if n not in tangents]
        for node in (*primals, *self.fx.find_nodes(op="get_attr")):
            self.known.update(_handle(tensor) for tensor in _tensors(node))
        for node in tangents:
            self._create(node)
        forward, backward = self._computations(tangents)
        stale = self._mutated(primals)
        outputs, results = map(self._storages_of, _outputs(self.fx))
        written = self._storages_of(each.args[1] for each in self.effects)
        loss = _implementation(reads=outputs, creates=self._storages_of(tangents))
        operators = (
            *(self._operator(node, again=_repeats(node, stale)) for node in forward),
            Operator(name="loss", module="", again=False, implementations=(loss,)),
            *(self._operator(node, again=False) for node in backward),
        )
        random = {i: _tensors(node)[0].device for i, node in enumerate(forward) if _is_random(node)}
        return Capture(
            graph=Graph(
                storages=tuple(self.storages),
                operators=operators,
                forward_count=len(forward),
                outputs=frozenset((*outputs, *written)),
                results=frozenset(results),
                resident=_resident(primals, len(random)),
            ),
            module=self.module,
            nodes=(*forward, None, *backward),
            storage_of=self.storage_of,
            bases=tuple(self.bases),
            views=frozenset(self.views),
            random=random,
            effects=self.effects,
        )

    def _computations(self, tangents: list[Node]) -> tuple[list[Node], list[Node]]:
        """Return the computing nodes of the forward and of the backward pass.

        The forward pass ends where the first node depends on a tangent or was traced while
        autograd ran. Nodes that only the backward pass needs, traced before, are of the forward
        pass, as in eager execution. Random ones are kept if nothing reads them: they change what
        later ones draw.
        """
        draws = [n for n in self.fx.nodes if n.op == "call_function" and _is_random(n)]
        needed = _ancestors(self.fx.output_node(), *self.effects, *draws).difference(self.effects)
        forward: list[Node] = []
        backward: list[Node] = []
        differentiated = set(tangents)
        for node in self.fx.nodes:
            if node.op != "call_function" or node not in needed:
                continue
            if self._is_view(node):
                self._note_view(node)
                if not differentiated.isdisjoint(node.all_input_nodes):
                    differentiated.add(node)
                continue
            _refuse_higher_order(node)
            begins = node.meta.get("partitioner_tag") == "is_backward"
            if backward or begins or not differentiated.isdisjoint(node.all_input_nodes):
                backward.append(node)
            else:
                forward.append(node)
            self._create(node)
        return forward, backward

    def _is_view(self, node: Node) -> bool:
        """Return whether a node creates no storage: each of its outputs is in one of before."""
        if node.target is operator.getitem:
            return True
        returns = getattr(getattr(node.target, "_schema", None), "returns", ())
        reads = [bool(each.alias_info) and not each.alias_info.is_write for each in returns]
        if reads and all(reads):
            return True
        handles = {_handle(tensor) for tensor in _tensors(node)}
        return bool(handles) and handles <= self.known

    def _note_view(self, node: Node) -> None:
        self.views.add(node)
        source = node.all_input_nodes[0]
        if source in self.elements:
            storage = self.elements[source].get(cast(int, node.args[1]))
        elif source in self.storage_of:
            storage = self.storage_of[source]
        else:
            storage = None
        if storage is not None:
            self.storage_of[node] = storage

    def _create(self, node: Node) -> None:
        """Add the storages of a node's outputs."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            self.storage_of[node] = self._add(value, node.name, (node, None))
            return
        self.elements[node] = {
            index: self._add(each, f"{node.name}[{index}]", (node, index))
            for index, each in enumerate(value)
            if isinstance(each, torch.Tensor)
        }

    def _add(self, tensor: torch.Tensor, name: str, base: tuple[Node, int | None]) -> int:
        self.known.add(_handle(tensor))
        self.storages.append(Storage(name=name, nbytes=rounded_bytes(tensor)))
        self.bases.append(base)
        return len(self.bases) - 1

    def _operator(self, node: Node, *, again: bool) -> Operator:
        creates = tuple(index for index, (made, _) in enumerate(self.bases) if made is node)
        default = _implementation(reads=self._storages_of(node.all_input_nodes), creates=creates)
        return Operator(
            name=node.name, module=_module(node), again=again, implementations=(default,)
        )

    def _storages_of(self, nodes: Iterable[Any]) -> tuple[int, ...]:
        found = (self.storage_of.get(node) for node in nodes if isinstance(node, Node))
        return tuple(dict.fromkeys(index for index in found if index is not None))

    def _mutated(self, primals: list[Node]) -> set[Node]:
        """Return nodes whose memory the step overwrites at the end of its forward pass."""
        labels = self.fx.output_node().meta["desc"]
        mutations = [each for each in labels if isinstance(each, InputMutationAOTOutput)]
        written = {each.mutated_input for each in mutations}
        found = {node for node in primals if node.meta["desc"] in written}
        found.update(cast(Node, each.args[0]) for each in self.effects)
        for node in self.fx.nodes:
            if node in self.views and not found.isdisjoint(node.all_input_nodes):
                found.add(node)
        return found


def rounded_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's storage, as the allocator of its device rounds them."""
    step = ROUNDING.get(tensor.device.type, 1)
    return -(-tensor.untyped_storage().nbytes() // step) * step


def _implementation(*, reads: tuple[int, ...], creates: tuple[int, ...]) -> Implementation:
    return Implementation(
        name="default", time_us=0.0, workspace_bytes=0, reads=reads, creates=creates
    )


def _repeats(node: Node, stale: set[Node]) -> bool:
    """Return whether a second run of a forward operator gives the same values, without effects."""
    if not is_rewritten(node):
        target = cast(OpOverload, node.target)
        if target.namespace not in PURE_NAMESPACES or target._schema.is_mutable:
            return False
    return is_training_batch_norm(node) or stale.isdisjoint(node.all_input_nodes)


def is_training_batch_norm(node: Node) -> bool:
    """Return whether a node is a batch normalization that updates running statistics.

    A second run reads none of them: the batch's own are what it normalizes with.
    """
    functional = aten._native_batch_norm_legit_functional.default
    return node.target is functional and node.args[5] is True


def _is_random(node: Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    names = [each.name for each in target._schema.arguments]
    return "dropout_p" not in names or argument(node, "dropout_p") != 0  # attention


def _refuse_unreadable(node: Node) -> None:
    if any(each.layout != torch.strided for each in _tensors(node)):
        _refuse(node, "is a sparse tensor; use dense ones (of nn.Embedding: sparse=False)")
    if node.kwargs.get("generator") is not None:
        _refuse(node, "draws from a generator of its own; use the default one")


def _refuse_higher_order(node: Node) -> None:
    if not isinstance(node.target, OpOverload) and not is_rewritten(node):
        _refuse(node, "is a call of higher order: write it as operators")


def _refuse(node: Node, reason: str) -> NoReturn:
    raise CaptureError(
        f"module {_named(_module(node))} cannot be captured: {node.name} {reason}, or leave the "
        "module outside of what is fitted"
    )


def _resident(primals: list[Node], random: int) -> dict[str, int]:
    """Return bytes of parameters, buffers, inputs, and of states of random generators.

    An operator that runs again holds two: that of its first run, and the one to go on with.
    """
    kinds = {ParamAOTInput: "parameters", BufferAOTInput: "buffers"}
    found = {"parameters": 0, "buffers": 0, "inputs": 0, "generators": 0}
    found["generators"] = (random + 1) * STATE_BYTES if random else 0
    seen: set[int] = set()
    for node in primals:
        kind = kinds.get(type(node.meta["desc"]), "inputs")
        for tensor in _tensors(node):
            if (handle := _handle(tensor)) not in seen:
                seen.add(handle)
                on_host = tensor.device.type == "cpu"
                found[kind] += (
                    tensor.untyped_storage().nbytes() if on_host else rounded_bytes(tensor)
                )
    return found


def _is_effect(node: Node) -> bool:
    """Return whether a node writes into an input; torch leaves no others that write."""
    return node.target is aten.copy_.default


def _ancestors(*nodes: Node) -> set[Node]:
    found: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        if (each := waiting.pop()) not in found:
            found.add(each)
            waiting.extend(each.all_input_nodes)
    return found


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values: Iterable[Any] = value if isinstance(value, list | tuple) else (value,)
    return [each for each in values if isinstance(each, torch.Tensor)]


def _handle(tensor: torch.Tensor) -> int:
    """Return what identifies the storage; the trace keeps all of them, so none is used twice."""
    return tensor.untyped_storage()._cdata


def _module(node: Node) -> str:
    return str(node.meta.get("custom", {}).get("module", ""))
