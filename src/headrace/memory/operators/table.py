"""The table of implementations: ATen operator -> variants of its nodes in a joint graph."""

from collections.abc import Mapping
from typing import Any

from torch.fx import Graph as FxGraph
from torch.fx import Node

from headrace.memory.exactness import Exactness
from headrace.memory.operators import (
    activations,
    attention,
    convolution,
    dropout,
    loss,
    normalization,
    pooling,
    products,
    recurrent,
)
from headrace.memory.operators.variant import Intermediate, Offers, Variant

OFFERS: Mapping[Any, Offers] = {
    **activations.OFFERS,
    **attention.OFFERS,
    **convolution.OFFERS,
    **dropout.OFFERS,
    **loss.OFFERS,
    **normalization.OFFERS,
    **pooling.OFFERS,
    **products.OFFERS,
    **recurrent.OFFERS,
}


REWRITTEN = (
    convolution.input_gradient,
    loss.linear_cross_entropy,
    loss.linear_cross_entropy_backward,
    products.attention_by_products,
    products.attention_backward_by_products,
    recurrent.recurrent,
    recurrent.recurrent_backward,
)
"""Targets of nodes that `rewrite` makes: functions without effects, and no ATen operators."""


def is_rewritten(node: Node) -> bool:
    """Return whether a node is one that `rewrite` made."""
    return node.target in REWRITTEN


def rewrite(graph: FxGraph) -> None:
    """Rewrite a joint graph, before it is read, so that more can be chosen; results are the same.

    Backward convolutions become two nodes; losses over a vocabulary, and attention that is written
    as products, one node in each pass (`split_convolutions`, `fuse_losses`, `fuse_attentions`).
    """
    convolution.split_convolutions(graph)
    loss.fuse_losses(graph)
    products.fuse_attentions(graph)


def variants(
    graph: FxGraph, exactness: Exactness = Exactness.ROUNDED
) -> dict[Node, tuple[Variant, ...]]:
    """Return the variants of every node of a joint graph that has some.

    Variants whose intermediates no backward variant reads, or no forward variant creates, are left
    out. A variant that overwrites may be used where the schedule reads what it overwrites no more.

    Parameters
    ----------
    exactness : of which variants may be, see `Exactness.included`.
    """
    offers = {
        node: [
            variant
            for variant in OFFERS[node.target](node)
            if variant.exactness in exactness.included
        ]
        for node in graph.nodes
        if node.op == "call_function" and node.target in OFFERS
    }
    every = [variant for offered in offers.values() for variant in offered]
    created = {
        intermediate for variant in every for intermediate in _intermediates(variant.creates)
    }
    read = {intermediate for variant in every for intermediate in _intermediates(variant.reads)}
    paired = created & read
    return {
        node: usable
        for node, offered in offers.items()
        if (usable := tuple(variant for variant in offered if paired.issuperset(_all(variant))))
    }


def _intermediates(values: Any) -> list[Intermediate]:
    return [operand for operand in values if isinstance(operand, Intermediate)]


def _all(variant: Variant) -> list[Intermediate]:
    return _intermediates((*variant.creates, *variant.reads))
