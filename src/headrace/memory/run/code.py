"""Python code of a graph that frees every tensor right after its last use.

Arguments come in a list, which the code empties, so that the caller holds none of them.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any, cast

from torch import Tensor
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node

from headrace.memory.operators.variant import as_traced


def freeing_code(module: GraphModule) -> Callable[[list[Any]], list[Any]]:
    """Return a function of a list of arguments; it returns the list of the graph's outputs."""
    names: dict[str, Any] = {}
    source = _Writer(module, names).written()
    exec(compile(source, "<headrace schedule>", "exec"), names)
    run = names["run"]
    run._boxed_call = True  # AOTAutograd hands over a list that may be emptied
    return run


class _Writer:
    def __init__(self, module: GraphModule, names: dict[str, Any]) -> None:
        self.module = module
        self.names = names
        self.bound: dict[int, str] = {}

    def written(self) -> str:
        graph = self.module.graph
        last_reads = _last_reads(graph)
        inputs = graph.find_nodes(op="placeholder")
        lines = [f"[{', '.join(node.name for node in inputs)}] = args", "args.clear()"]
        lines += [f"del {node.name}" for node in inputs if not node.users]
        for node in graph.nodes:
            if node.op == "get_attr":
                constant = getattr(self.module, str(node.target))
                lines.append(f"{node.name} = {self._constant(constant)}")
            elif node.op == "call_function":
                lines.append(f"{node.name} = {self._call(node)}")
                lines += self._as_traced(node)
            if dead := last_reads.get(node):
                lines.append(f"del {', '.join(value_node.name for value_node in dead)}")
        (outputs,) = graph.output_node().args
        lines.append(f"return {self._text(list(cast(Sequence[Any], outputs)))}")
        return "def run(args):\n" + "".join(f"    {line}\n" for line in lines)

    def _as_traced(self, node: Node) -> list[str]:
        """Return the correction of a result that its kernel lays out otherwise than traced.

        Some kernels allocate more than traced, too: ``aten.copy`` of a slice copies all that the
        slice is a part of. A view has its base's memory, which is corrected there, or an input's.
        """
        traced = node.meta.get("val")
        if not isinstance(traced, Tensor) or _is_view(node, traced):
            return []
        strides, nbytes = traced.stride(), traced.untyped_storage().nbytes()
        differs = [f"{node.name}.untyped_storage().nbytes() > {nbytes}"]
        if len(strides) > 1:
            differs.append(f"{node.name}.stride() != {strides}")
        call = f"{self._constant(as_traced)}({node.name}, {strides}, {nbytes})"
        return [f"if {' or '.join(differs)}: {node.name} = {call}"]

    def _call(self, node: Node) -> str:
        texts = [self._text(argument) for argument in node.args]
        texts += [f"{key}={self._text(argument)}" for key, argument in node.kwargs.items()]
        return f"{self._constant(node.target)}({', '.join(texts)})"

    def _text(self, value: Any) -> str:
        if isinstance(value, Node):
            return value.name
        if isinstance(value, list):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, tuple):
            return f"({''.join(f'{self._text(element)}, ' for element in value)})"
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        name = self.bound.setdefault(id(value), f"_c{len(self.bound)}")
        self.names[name] = value
        return name


def _is_view(node: Node, traced: Tensor) -> bool:
    """Return whether a node's value is in the memory of what its operator reads."""
    computed = cast(Node, node.args[0]) if node.target is getitem else node
    operands = (operand.meta.get("val") for operand in computed.all_input_nodes)
    tensors = (
        tensor
        for value in operands
        for tensor in (value if isinstance(value, list | tuple) else (value,))
        if isinstance(tensor, Tensor)
    )
    storage = traced.untyped_storage()._cdata
    return any(tensor.untyped_storage()._cdata == storage for tensor in tensors)


def _last_reads(graph: FxGraph) -> dict[Node, list[Node]]:
    """Return by node what is dead after it: values that it reads last, or itself, unread."""
    last_reads: dict[Node, list[Node]] = {}
    seen: set[Node] = set(graph.output_node().all_input_nodes)
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output"):
            continue
        dead = [
            operand
            for operand in dict.fromkeys((node, *node.all_input_nodes))
            if operand not in seen
        ]
        seen.update(dead)
        last_reads[node] = dead
    return last_reads
