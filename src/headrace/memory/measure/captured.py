"""A training step as traced: the joint graph of a module, and its operators on storages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch._functorch._aot_autograd.descriptors import TangentAOTInput
from torch._functorch._aot_autograd.schemas import JointWithDescriptors
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node

from headrace.facades import public_value
from headrace.memory.graph import Graph
from headrace.memory.measure.attributes import AttributeChange


@dataclass(frozen=True, slots=True)
class Stored:
    """Argument of a `TracedCall`: the latest instance of a storage that no node computes."""

    storage: int


@public_value("headrace.memory")
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


@public_value("headrace.memory")
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
        added to earlier ones once it has run (`headrace.memory.measure.accumulate`).
    changes : of attributes by `forward`, to be repeated behind each step.
    retained : storages that the autograd graph of an operator refers to: they are computed once.
    tensor_names : of the tensors in the model's arguments, in their order.
    beside_loss : places of outputs that take no gradients; see `headrace.memory.measure.losses`.
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
    retained: frozenset[int] = frozenset()
    tensor_names: tuple[str, ...] = ()
    beside_loss: frozenset[int] = frozenset()

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
        return returned_nodes(self.fx)[0]

    @property
    def gradients(self) -> list[Any]:
        """Nodes that the backward pass returns, for every input; None if it needs no gradient."""
        return returned_nodes(self.fx)[1]


def input_labels(graph: FxGraph) -> list[Any]:
    """Return torch's descriptors of a joint graph's inputs."""
    return [node.meta.get("desc") for node in graph.find_nodes(op="placeholder")]


def returned_nodes(graph: FxGraph) -> tuple[list[Any], list[Any]]:
    """Return nodes of the outputs, and of the gradients: one for every input of the step."""
    (returned,) = graph.output_node().args
    outputs = list(cast(Sequence[Any], returned))
    labels = input_labels(graph)
    count = len(outputs) - sum(not isinstance(label, TangentAOTInput) for label in labels)
    return outputs[:count], outputs[count:]
