"""Forward and backward graph of a schedule, from the joint graph of a training step.

A run of an operator is a copy of its node. Views compute nothing and hold no memory of their own,
so they are copied where an instance is read, in the forward and in the backward graph. Tensors that
the backward graph reads and does not compute are its inputs, which the forward graph returns.
"""

# pyright: reportPrivateUsage=false

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch._functorch._aot_autograd.descriptors import PlainAOTOutput
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from headrace.memory.errors import ScheduleError
from headrace.memory.measure.captured import Capture, Stored, TracedCall
from headrace.memory.measure.read import is_training_batch_norm
from headrace.memory.run.accumulate import AddedGradients, Adder
from headrace.memory.run.random import Draw, FirstDraw, Replay, empty_state
from headrace.memory.schedule import Schedule, Step

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _State:
    """Key of the state of a random generator, from before the first run of an operator."""

    operator: int


_Key = int | Node | _State
"""Value that a backward graph can take over: a storage's instance, an input, or a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """The two graphs of a schedule.

    Attributes
    ----------
    outputs_read : places of the module's outputs that the backward graph reads.
    """

    forward: GraphModule
    backward: GraphModule
    outputs_read: frozenset[int]


def scheduled_graphs(
    capture: Capture, schedule: Schedule, gradients: AddedGradients | None = None
) -> Graphs:
    """Return the graphs of a schedule.

    Parameters
    ----------
    gradients : to which the capture's accumulated ones are added; they are not returned then.

    Raises
    ------
    ScheduleError
        If an operator reads what is not there, or random operators run first in another order than
        the module's: they would draw other numbers.
    """
    _check_order(capture, schedule)
    forward = _Graph(capture, schedule, is_forward=True)
    backward = _Graph(capture, schedule, is_forward=False)
    for step in schedule.steps[: schedule.forward_steps]:
        forward.run(step)
    added: set[int] = set()
    for step in schedule.steps[schedule.forward_steps :]:
        backward.run(step)
        if gradients is not None:
            for position in capture.accumulated.get(step.operator, ()):
                backward.add_gradient(gradients, position)
                added.add(position)
    for effect in capture.effects:
        forward.add_effect(effect)
    returned = [
        None if position in added else backward.value(node)
        for position, node in enumerate(capture.gradients)
    ]
    outputs = [forward.value(node) for node in capture.forward_outputs]
    saved = [forward.instance(key) for key in backward.taken_over]
    return Graphs(
        forward=forward.finished([*outputs, *saved]),
        backward=backward.finished(returned),
        outputs_read=_outputs_read(capture, backward.taken_over),
    )


def _outputs_read(capture: Capture, taken_over: Sequence[_Key]) -> frozenset[int]:
    """Return the places of the module's outputs that share memory with what a pass takes over."""
    storages = {key for key in taken_over if isinstance(key, int)}
    labels = capture.fx.output_node().meta["desc"]
    return frozenset(
        label.idx
        for node, label in zip(capture.forward_outputs, labels, strict=False)
        if isinstance(label, PlainAOTOutput) and capture.storage_of.get(node) in storages
    )


def copied_if_retained(saved: torch.Tensor) -> torch.Tensor:
    """Return a tensor that autograd has saved: a copy where it retains the graph."""
    is_retained = torch._C._autograd._get_current_graph_task_keep_graph()  # pyright: ignore[reportAttributeAccessIssue]
    return saved.clone() if is_retained else saved


def _check_order(capture: Capture, schedule: Schedule) -> None:
    first_runs = list(dict.fromkeys(step.operator for step in schedule.steps))
    random = [operator_index for operator_index in first_runs if operator_index in capture.random]
    if random != sorted(random):
        raise ScheduleError("random operators run in another order than the module's")
    after = schedule.steps[schedule.forward_steps :]
    if not after or after[0].operator != capture.graph.forward_count:
        raise ScheduleError("the backward pass does not begin with the loss")


def _draws(capture: Capture, step: Step) -> bool:
    call = capture.calls.get((step.operator, step.implementation))
    return step.operator in capture.random and (call is None or call.draws)


class _Graph:
    """One of the two graphs, and the latest instance of everything in it."""

    def __init__(self, capture: Capture, schedule: Schedule, *, is_forward: bool) -> None:
        self.capture = capture
        self.is_forward = is_forward
        self.draws = Counter(step.operator for step in schedule.steps if _draws(capture, step))
        self.graph = FxGraph()
        self.latest: dict[_Key, Node] = {}
        self.views: dict[Node, tuple[Node | None, Node]] = {}  # with the instance that they are of
        self.done: set[int] = set()  # operators that ran
        self.taken_over: list[_Key] = []
        self.creates = {
            index: node_operator.implementations[0].creates
            for index, node_operator in enumerate(capture.graph.operators)
        }
        self.first_tangent = self._add_placeholders()

    def _add_placeholders(self) -> Node | None:
        for node in self.capture.fx.find_nodes(op="placeholder"):
            if (node in self.capture.storage_of) == self.is_forward:
                continue
            copied = self.graph.node_copy(node)
            self.latest[self.capture.storage_of.get(node, node)] = copied
        return next(iter(self.graph.nodes)) if not self.is_forward else None

    def run(self, step: Step) -> None:
        """Run an operator, and make its instances the latest."""
        node = self.capture.nodes[step.operator]
        call = self.capture.calls.get((step.operator, step.implementation))
        if call is not None:
            again = self._again(step.operator)
            implementation = self.capture.graph.operators[step.operator].implementations[
                step.implementation
            ]
            if implementation.overwrites is not None:
                self._own(implementation.overwrites)
            self._call(step.operator, call, again=again)
        if call is not None or node is None:
            return  # without node: the loss, which is outside
        again = self._again(step.operator)
        copied = self._copy(step.operator, node, again=again)
        for storage in self.creates[step.operator]:
            index = self.capture.bases[storage][1]
            if index is None:
                self.latest[storage] = copied
            elif not (again and is_training_batch_norm(node) and index > 2):
                element = self.graph.call_function(operator.getitem, (copied, index))
                element.meta["val"] = node.meta["val"][index]
                self.latest[storage] = element

    def _own(self, storage: int) -> None:
        """Make the latest instance of a storage one that may be overwritten."""
        instance = self.instance(storage)
        if instance.op == "placeholder":  # which the forward graph has saved
            self.latest[storage] = self.graph.call_function(copied_if_retained, (instance,))
            self.latest[storage].meta["val"] = instance.meta["val"]

    def add_effect(self, node: Node) -> None:
        """Add a node that writes into an input."""
        self.graph.node_copy(node, self.value)

    def add_gradient(self, gradients: AddedGradients, position: int) -> None:
        """Add the addition of an input's gradient to that of before."""
        node, storage_of = self.capture.gradients[position], self.capture.storage_of
        sharing = [
            gradient
            for gradient in self.capture.gradients
            if isinstance(gradient, Node) and storage_of.get(gradient) == storage_of[node]
        ]
        adder = Adder(gradients, position, owned=len(sharing) == 1)
        self.graph.call_function(adder, (self.value(node),))

    def _again(self, index: int) -> bool:
        """Note a run, and return whether the operator ran before."""
        again = index in self.done
        again |= not self.is_forward and index < self.capture.graph.forward_count
        self.done.add(index)
        return again

    def _call(self, index: int, call: TracedCall, *, again: bool) -> None:
        target, args = call.target, self._arguments(call.args)
        if call.draws:
            target, states = self._drawing(index, target, again=again)
            args = (*states, *args)
        called = self.graph.create_node(
            "call_function", target, args, self._arguments(dict(call.kwargs)), name="way"
        )
        examples = [self.capture.example(output) for output in call.outputs]
        if len(examples) == 1 and self.capture.bases[call.outputs[0]][1] is None:
            called.meta["val"] = examples[0]
            self.latest[call.outputs[0]] = called
            return
        called.meta["val"] = tuple(examples)
        for index, (storage, example) in enumerate(zip(call.outputs, examples, strict=True)):
            element = self.graph.call_function(operator.getitem, (called, index))
            element.meta["val"] = example
            self.latest[storage] = element

    def _arguments(self, values: Any) -> Any:
        return map_aggregate(values, self._argument)

    def _argument(self, value: Any) -> Any:
        return self.instance(value.storage) if isinstance(value, Stored) else self.value(value)

    def _copy(self, index: int, node: Node, *, again: bool) -> Node:
        if again and is_training_batch_norm(node):
            x, weight, bias, _mean, _variance, *options = node.args
            replayed = self.graph.call_function(
                aten._native_batch_norm_legit.no_stats,
                map_arg((x, weight, bias, *options), self.value),
            )
            replayed.meta["val"] = node.meta["val"][:3]
            return replayed
        if index not in self.capture.random:
            return self.graph.node_copy(node, self.value)
        target, states = self._drawing(index, cast(Callable[..., Any], node.target), again=again)
        drawn = self.graph.create_node(
            "call_function",
            target,
            (*states, *map_arg(node.args, self.value)),
            map_arg(node.kwargs, self.value),
            name=f"{node.name}_again" if again else node.name,
        )
        drawn.meta["val"] = node.meta["val"]
        return drawn

    def _drawing(
        self, index: int, target: Callable[..., Any], *, again: bool
    ) -> tuple[Callable[..., Any], tuple[Node, ...]]:
        """Return a random operator as it is to be called, and its arguments before the others."""
        if self.draws[index] == 1:
            return Draw(target), ()
        key, device = _State(index), self.capture.random[index]
        if again:
            return Replay(target, device), (self.instance(key),)
        self.latest[key] = self._state(device)
        return FirstDraw(target, device), (self.latest[key],)

    def _state(self, device: torch.device) -> Node:
        state = self.graph.call_function(empty_state, (device,))
        state.meta["val"] = self._state_example(device)
        return state

    def _state_example(self, device: torch.device) -> torch.Tensor:
        example = next(iter(self.capture.fx.nodes)).meta["val"]
        with example.fake_mode:
            return empty_state(device)

    def value(self, node: Any) -> Any:
        """Return the copy of a node for the latest instance of what it reads."""
        if not isinstance(node, Node):
            return node
        storage = self.capture.storage_of.get(node)
        if storage is None:
            return self._resident(node)
        base = self.instance(storage)
        base_node, index = self.capture.bases[storage]
        if node is base_node or (node.args[0] is base_node and index is not None):
            return base
        view = self.views.get(node)
        if view is None or view[0] is not base:
            view = self.views[node] = (base, self.graph.node_copy(node, self.value))
        return view[1]

    def _resident(self, node: Node) -> Node:
        """Return the copy of an input of the step, of a constant, or of a view of one."""
        if node.op == "placeholder":
            return self.instance(node)
        if node not in self.views:
            self.views[node] = (None, self.graph.node_copy(node, self.value))
        return self.views[node][1]

    def instance(self, key: _Key) -> Node:
        """Return the latest instance of a storage, an input or a state."""
        if key not in self.latest:
            if self.is_forward:
                raise ScheduleError(f"{self._named(key)} is read and not there")
            assert self.first_tangent is not None
            with self.graph.inserting_before(self.first_tangent):
                self.latest[key] = self._placeholder(key)
            self.taken_over.append(key)
        return self.latest[key]

    def _placeholder(self, key: _Key) -> Node:
        placeholder = self.graph.placeholder(f"saved_{len(self.taken_over)}")
        if isinstance(key, Node):
            placeholder.meta["val"] = key.meta["val"]
        elif isinstance(key, _State):
            placeholder.meta["val"] = self._state_example(self.capture.random[key.operator])
        else:
            placeholder.meta["val"] = self.capture.example(key)
        return placeholder

    def _named(self, key: _Key) -> str:
        return self.capture.graph.storages[key].name if isinstance(key, int) else str(key)

    def finished(self, outputs: list[Any]) -> GraphModule:
        self.graph.output(tuple(outputs))
        for node in reversed(list(self.graph.nodes)):
            if node.target is operator.getitem and not node.users:
                self.graph.erase_node(node)
        return GraphModule(self.capture.module, self.graph)
