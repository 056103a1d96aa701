"""Reading of a joint graph: its operators on storages.

Views of a storage are told from operators that create storages, and the nodes of the forward from
those of the backward pass.
"""

# pyright: reportPrivateUsage=false

import operator
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch._functorch._aot_autograd.descriptors import (
    InputMutationAOTOutput,
    TangentAOTInput,
)
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from headrace.memory.graph import Graph, Implementation, Operator, Storage
from headrace.memory.measure.captured import Capture, returned_nodes
from headrace.memory.measure.linalg_checks import is_check
from headrace.memory.measure.refuse import module_of, refuse_higher_order, refuse_unreadable
from headrace.memory.measure.sizes import (
    resident_bytes,
    rounded_bytes,
    storage_key,
    tensors_of,
)
from headrace.memory.measure.value_checks import is_value_check
from headrace.memory.operators import is_rewritten, recurrent
from headrace.memory.operators.variant import argument

aten = torch.ops.aten
PURE_NAMESPACES = ("aten", "prims", "torchvision")
"""Operators of others may have effects that their schema does not name: they are run once."""


def read_joint_graph(module: GraphModule) -> Capture:
    """Return the operators and storages of a joint graph.

    Raises
    ------
    CaptureError : tensors are sparse, an operator is of higher order or draws from another
        generator than the default one.
    """
    return _Reader(module).read()


class _Reader:
    """Operators and storages of a joint graph, as its nodes are read in order."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.fx = module.graph
        self.effects = tuple(filter(_is_effect, self.fx.nodes))
        self.storages: list[Storage] = []
        self.bases: list[tuple[Node, int | None]] = []
        self.seen: set[int] = set()  # keys of storages
        self.storage_of: dict[Node, int] = {}
        self.elements: dict[Node, dict[int, int]] = {}  # storages of nodes with several outputs
        self.views: set[Node] = set()

    def read(self) -> Capture:
        for node in self.fx.nodes:
            refuse_unreadable(node)
        inputs = self.fx.find_nodes(op="placeholder")
        tangents = [n for n in inputs if isinstance(n.meta["desc"], TangentAOTInput)]
        primals = [n for n in inputs if n not in tangents]
        for node in (*primals, *self.fx.find_nodes(op="get_attr")):
            self.seen.update(storage_key(tensor) for tensor in tensors_of(node))
        for node in tangents:
            self._create(node)
        forward, backward = self._computations(tangents)
        stale = self._mutated(primals)
        outputs, results = map(self._storages_of, returned_nodes(self.fx))
        written = self._storages_of(effect.args[1] for effect in self.effects)
        loss = _implementation(reads=outputs, creates=self._storages_of(tangents))
        retained = frozenset(
            storage for node in forward for storage in self._storages_of(recurrent.retained(node))
        )
        once = {self.bases[storage][0] for storage in retained}
        operators = (
            *(
                self._operator(node, again=node not in once and _repeats(node, stale))
                for node in forward
            ),
            Operator(name="loss", module="", again=False, implementations=(loss,)),
            *(self._operator(node, again=False) for node in backward),
        )
        random = {
            i: tensors_of(node)[0].device for i, node in enumerate(forward) if _is_random(node)
        }
        return Capture(
            graph=Graph(
                storages=tuple(self.storages),
                operators=operators,
                forward_count=len(forward),
                outputs=frozenset((*outputs, *written)),
                results=frozenset(results),
                resident=resident_bytes(primals, len(random)),
            ),
            module=self.module,
            nodes=(*forward, None, *backward),
            storage_of=self.storage_of,
            bases=tuple(self.bases),
            views=frozenset(self.views),
            random=random,
            effects=self.effects,
            retained=retained,
        )

    def _computations(self, tangents: list[Node]) -> tuple[list[Node], list[Node]]:
        """Return the computing nodes of the forward and of the backward pass.

        The forward pass ends where the first node depends on a tangent or was traced while
        autograd ran. Nodes that only the backward pass needs, traced before, are of the forward
        pass, as in eager execution. Random ones are kept if nothing reads them: they change what
        later ones draw. So are checks, which have no results.
        """
        unread = [
            n for n in self.fx.nodes if n.op == "call_function" and (_is_random(n) or _is_check(n))
        ]
        roots = (self.fx.output_node(), *self.effects, *unread)
        computing = _ancestors(*roots).difference(self.effects)
        forward: list[Node] = []
        backward: list[Node] = []
        differentiated = set(tangents)
        for node in self.fx.nodes:
            if node.op != "call_function" or node not in computing:
                continue
            if self._is_view(node):
                self._note_view(node)
                if not differentiated.isdisjoint(node.all_input_nodes):
                    differentiated.add(node)
                continue
            refuse_higher_order(node)
            begins = node.meta.get("partitioner_tag") == "is_backward"
            if backward or begins or not differentiated.isdisjoint(node.all_input_nodes):
                backward.append(node)
            else:
                forward.append(node)
            self._create(node)
        return forward, backward

    def _is_view(self, node: Node) -> bool:
        """Return whether a node creates no storage: each of its outputs is in an earlier one."""
        if node.target is operator.getitem:
            return True
        returns = getattr(getattr(node.target, "_schema", None), "returns", ())
        aliases = [bool(out.alias_info) and not out.alias_info.is_write for out in returns]
        if aliases and all(aliases) and node.all_input_nodes:  # not of a number, such as 1j
            return True
        keys = {storage_key(tensor) for tensor in tensors_of(node)}
        return bool(keys) and keys <= self.seen

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
        if _is_check(node):
            return
        returned = node.meta["val"]
        if isinstance(returned, torch.Tensor):
            self.storage_of[node] = self._add(returned, node.name, (node, None))
            return
        self.elements[node] = {
            index: self._add(output, f"{node.name}[{index}]", (node, index))
            for index, output in enumerate(returned)
            if isinstance(output, torch.Tensor)
        }

    def _add(self, tensor: torch.Tensor, name: str, base: tuple[Node, int | None]) -> int:
        self.seen.add(storage_key(tensor))
        self.storages.append(Storage(name=name, nbytes=rounded_bytes(tensor)))
        self.bases.append(base)
        return len(self.bases) - 1

    def _operator(self, node: Node, *, again: bool) -> Operator:
        creates = tuple(index for index, (base, _) in enumerate(self.bases) if base is node)
        default = _implementation(reads=self._storages_of(node.all_input_nodes), creates=creates)
        return Operator(
            name=node.name, module=module_of(node), again=again, implementations=(default,)
        )

    def _storages_of(self, nodes: Iterable[Any]) -> tuple[int, ...]:
        storages = (self.storage_of.get(node) for node in nodes if isinstance(node, Node))
        return tuple(dict.fromkeys(index for index in storages if index is not None))

    def _mutated(self, primals: list[Node]) -> set[Node]:
        """Return nodes whose memory the step overwrites at the end of its forward pass."""
        labels = self.fx.output_node().meta["desc"]
        mutations = [label for label in labels if isinstance(label, InputMutationAOTOutput)]
        written = {mutation.mutated_input for mutation in mutations}
        mutated = {node for node in primals if node.meta["desc"] in written}
        mutated.update(cast(Node, effect.args[0]) for effect in self.effects)
        for node in self.fx.nodes:
            if node in self.views and not mutated.isdisjoint(node.all_input_nodes):
                mutated.add(node)
        return mutated


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
    names = [parameter.name for parameter in target._schema.arguments]
    return "dropout_p" not in names or argument(node, "dropout_p") != 0  # attention


def _is_check(node: Node) -> bool:
    return is_check(node) or is_value_check(node)


def _is_effect(node: Node) -> bool:
    """Return whether a node writes into an input; torch leaves no others that write."""
    return node.target is aten.copy_.default


def _ancestors(*nodes: Node) -> set[Node]:
    ancestors: set[Node] = set()
    stack = list(nodes)
    while stack:
        if (node := stack.pop()) not in ancestors:
            ancestors.add(node)
            stack.extend(node.all_input_nodes)
    return ancestors
