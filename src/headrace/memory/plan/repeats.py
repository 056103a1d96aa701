"""Equal blocks of a network, such as its layers: what is found for one may serve all.

Blocks are told by names of modules with a number in them, such as ``layers.3``: those with the same
operators, in the same order and of the same sizes, are equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.memory.graph import Graph

_LEAST_OPERATORS = 3
"""Of a block in the forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Operators of one block.

    Attributes
    ----------
    name : of its module.
    forward, backward : their indices in the graph, in order.
    """

    name: str
    forward: tuple[int, ...]
    backward: tuple[int, ...]


def repeated_blocks(graph: Graph) -> list[list[Block]]:
    """Return the blocks that are equal to others, class by class; outer ones, not parts of them."""
    members: dict[str, dict[int, list[int]]] = {}
    for index, operator in enumerate(graph.operators):
        for prefix, number in _numbered(operator.module):
            members.setdefault(prefix, {}).setdefault(number, []).append(index)
    classes_of_blocks: list[list[Block]] = []
    taken: set[int] = set()
    for prefix in sorted(members, key=lambda name: name.count(".")):
        classes: dict[object, list[Block]] = {}
        for number, operators in sorted(members[prefix].items()):
            if taken.isdisjoint(operators):
                split = sum(operator < graph.forward_count for operator in operators)
                block = Block(
                    name=f"{prefix}{number}",
                    forward=tuple(operators[:split]),
                    backward=tuple(operators[split:]),
                )
                if split >= _LEAST_OPERATORS and block.backward:
                    key = _signature(graph, operators, len(f"{prefix}{number}"))
                    classes.setdefault(key, []).append(block)
        for blocks in classes.values():
            if len(blocks) > 1:
                classes_of_blocks.append(blocks)
                taken.update(
                    operator for block in blocks for operator in (*block.forward, *block.backward)
                )
    return classes_of_blocks


def _numbered(module: str) -> Iterator[tuple[str, int]]:
    """Yield the modules around an operator that have a number: the name before it, and it."""
    parts = module.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            yield "".join(f"{name}." for name in parts[:place]), int(part)


def _signature(graph: Graph, operators: list[int], skipped: int) -> tuple[object, ...]:
    """Return the key that equal blocks share."""
    return tuple(
        (
            index < graph.forward_count,
            graph.operators[index].module[skipped:],
            tuple(
                (variant.name, *(graph.storages[storage].nbytes for storage in variant.creates))
                for variant in graph.operators[index].implementations
            ),
        )
        for index in operators
    )
