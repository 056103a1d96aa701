"""Capture of a training step: refused or traced, rewritten, and read.

The joint graph is kept: schedules are run on it (`headrace.memory.run`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from headrace.memory.errors import CaptureError
from headrace.memory.measure.arguments import step_arguments, tensor_names
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.preserve import preserved
from headrace.memory.measure.read import read_joint_graph
from headrace.memory.measure.recurrent import call_functions
from headrace.memory.measure.refuse import refuse_hooks, refuse_layouts
from headrace.memory.measure.trace import traced_step
from headrace.memory.operators import rewrite
from headrace.memory.operators.normalization import correct_statistics, drop_unread_statistics


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
    refuse_hooks(model)
    args, kwargs = step_arguments(model, args, kwargs or {})
    refuse_layouts(model, args, kwargs)
    with preserved(model):
        leaves = pytree.tree_map_only(torch.Tensor, _leaf, (tuple(args), dict(kwargs or {})))
        trace = traced_step(model, *leaves)
    joint = trace.joint
    drop_unread_statistics(joint.graph_module.graph)
    correct_statistics(joint.graph_module.graph)
    call_functions(joint.graph_module.graph)
    rewrite(joint.graph_module.graph)
    joint.graph_module.recompile()  # its code is text alone: constants have no names in it
    return replace(
        read_joint_graph(joint.graph_module),
        joint=joint,
        changes=trace.changes,
        tensor_names=tuple(tensor_names(model, args, kwargs)),
        beside_loss=trace.beside_loss,
    )


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
    captured = read_joint_graph(module)
    operators = tuple(
        replace(operator, again=operator.again and index not in captured.random)
        for index, operator in enumerate(captured.graph.operators)
    )
    resident = dict(captured.graph.resident)
    resident.pop("generators", None)
    graph = replace(captured.graph, operators=operators, resident=resident)
    return replace(captured, graph=graph, random={})


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that no earlier operator has computed: the trace looks for its gradient."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
