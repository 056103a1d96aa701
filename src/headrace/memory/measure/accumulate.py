"""Steps that add gradients to earlier ones while the backward pass runs, as autograd does.

A gradient of a parameter is then needed no longer than until it is added, so that not all of them
are live at the end of the step beside those that they are added to.
"""

# pyright: reportPrivateUsage=false

from collections import Counter
from dataclasses import replace

from torch import Tensor
from torch._functorch._aot_autograd.descriptors import ParamAOTInput
from torch.fx import Node

from headrace.memory.measure.captured import Capture


def accumulating(capture: Capture, *, tied: bool) -> Capture:
    """Return the capture of a step that adds gradients of parameters as they are made.

    Parameters
    ----------
    tied : those of parameters with several names, too. Each part is then added by itself, where
        autograd adds their sum: the results can differ by rounding.
    """
    inputs = capture.fx.find_nodes(op="placeholder")
    names = Counter(map(input_memory, inputs))
    operator_of = {
        storage: index
        for index, operator in enumerate(capture.graph.operators)
        for storage in operator.implementations[0].creates
    }
    accumulated: dict[int, tuple[int, ...]] = {}
    results: set[int] = set()
    for position, gradient in enumerate(capture.gradients):
        storage = capture.storage_of.get(gradient)
        if storage is None:
            continue
        operator, parameter = operator_of[storage], inputs[position]
        is_parameter = isinstance(parameter.meta["desc"], ParamAOTInput)
        if (
            is_parameter
            and operator > capture.graph.forward_count
            and (tied or names[input_memory(parameter)] == 1)
        ):
            accumulated[operator] = (*accumulated.get(operator, ()), position)
        else:
            results.add(storage)
    graph = replace(capture.graph, results=frozenset(results))
    return replace(capture, graph=graph, accumulated=accumulated)


def input_memory(node: Node) -> object:
    """Return the identity of an input's memory; arguments that are no tensors have their own."""
    value = node.meta["val"]
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else node
