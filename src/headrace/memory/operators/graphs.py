"""Edits of a joint graph: calls of our functions in place of ATen's nodes."""

from collections.abc import Callable
from operator import getitem
from typing import Any

from torch.fx import Graph as FxGraph
from torch.fx import Node


def insert_call(
    graph: FxGraph, before: Node, target: Callable[..., Any], args: tuple[Any, ...], value: Any
) -> Node:
    """Insert a call before a node, whose notes (module, pass) it takes over.

    Parameters
    ----------
    value : fake tensor, or a tuple of them, that the call returns.
    """
    with graph.inserting_before(before):
        call = graph.call_function(target, args)
    call.meta.update(before.meta)
    call.meta["val"] = value
    call.meta.pop("tensor_meta", None)
    return call


def insert_elements(graph: FxGraph, before: Node, call: Node) -> list[Node]:
    """Insert the elements of the tuple that a call returns before a node."""
    return [
        insert_call(graph, before, getitem, (call, index), value)
        for index, value in enumerate(call.meta["val"])
    ]


def erase_dependents(graph: FxGraph, node: Node) -> None:
    """Erase a node and what depends on it: the rest of a pattern that has been fused."""
    dependents = {node}
    for dependent in graph.nodes:
        if not dependents.isdisjoint(dependent.all_input_nodes):
            dependents.add(dependent)
    for dependent in reversed(list(graph.nodes)):
        if dependent in dependents:
            graph.erase_node(dependent)


def replace_element(old: Node, index: int, new: Node) -> None:
    """Let elements of a node's tuple be those of another one's, at the same index."""
    for use in list(old.users):
        if use.args[1] == index:
            use.args = (new, index)
