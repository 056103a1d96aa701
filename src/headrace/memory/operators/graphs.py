"""Edits of a joint graph: calls of our functions in place of ATen's nodes."""

from collections.abc import Callable
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
        made = graph.call_function(target, args)
    made.meta.update(before.meta)
    made.meta["val"] = value
    made.meta.pop("tensor_meta", None)
    return made


def replace_element(old: Node, index: int, new: Node, new_index: int | None = None) -> None:
    """Let elements of a node's tuple be those of another one's."""
    for use in list(old.users):
        if use.args[1] == index:
            use.args = (new, index if new_index is None else new_index)
