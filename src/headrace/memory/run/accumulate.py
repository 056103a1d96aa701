"""Gradients of a step's parameters, added to `grad` while its backward pass runs."""

# pyright: reportPrivateUsage=false

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from headrace.forks import ThreadLock
from headrace.memory.errors import CaptureError
from headrace.memory.run.differentiation import step_nodes

_ADDITION = ThreadLock()
"""Held while a gradient is added, as by autograd's own nodes: two threads may run backward passes
that have a parameter in common."""


class AddedGradients(threading.local):
    """Parameters of the forward pass whose backward pass runs in a thread.

    Attributes
    ----------
    parameters : those whose gradients are added, by position among the graph's inputs.
    """

    def __init__(self) -> None:
        self.parameters: dict[int, Tensor] = {}

    def called(
        self, step: Callable[..., Any], names: Mapping[int, tuple[int, str]]
    ) -> Callable[..., Any]:
        """Return the step, which notes its parameters.

        Parameters
        ----------
        names : of the parameters whose gradients are added, with their places among the arguments,
            by position.
        """

        def run(*args: Any) -> Any:
            for place, name in names.values():
                if args[place]._backward_hooks:
                    raise CaptureError(
                        f"parameter {name!r} has a hook on its gradient, which accumulates inside "
                        "of the step: fit without accumulates=True, or remove the hook"
                    )
                if not args[place].is_leaf:
                    raise CaptureError(
                        f"parameter {name!r} is computed from others, as by functional_call, "
                        "which would get no gradients: fit without accumulates=True"
                    )
            earlier = step_nodes(args)  # of inputs that the step returns
            outputs = step(*args)
            for node in step_nodes(outputs):
                if node in earlier:
                    continue
                ends = _ends(node)
                parameters = [
                    (position, args[place], ends.get(id(args[place])))
                    for position, (place, _) in names.items()
                ]
                node.register_prehook(partial(self._begin, parameters))
            return outputs

        return run

    def _begin(self, parameters: Sequence[tuple[int, Tensor, Any]], _gradients: Any) -> None:
        """Note the parameters of a backward pass: of those that it is asked for."""
        self.parameters = {
            position: parameter
            for position, parameter, end in parameters
            if end is None or torch._C._will_engine_execute_node(end)
        }


def _ends(node: Node) -> dict[int, Any]:
    """Return the nodes behind one that accumulate gradients, by the identity of their leaves."""
    ends = [end for end, _ in node.next_functions]
    return {id(leaf): end for end in ends if (leaf := getattr(end, "variable", None)) is not None}


@dataclass(frozen=True, slots=True, eq=False)
class Adder:
    """Addition of a gradient to that of one parameter, in place as autograd adds it.

    Attributes
    ----------
    position : of the parameter among the graph's inputs.
    owned : whether nothing else is in the gradient's memory, so that it can become `grad`.
    """

    gradients: AddedGradients
    position: int
    owned: bool

    @property
    def __name__(self) -> str:
        """Name in a graph's code."""
        return "add_gradient"

    def __call__(self, gradient: Tensor) -> None:
        """Add it; autograd, which gets none, runs the hooks that see what is accumulated."""
        parameter = self.gradients.parameters.get(self.position)
        if parameter is None:
            return
        with _ADDITION:
            if parameter.grad is not None:
                parameter.grad.add_(gradient)
            elif self._fits(gradient, parameter):
                parameter.grad = gradient.detach()
            else:
                parameter.grad = torch.empty_like(parameter).copy_(gradient)

    def _fits(self, gradient: Tensor, parameter: Tensor) -> bool:
        return (
            self.owned
            and gradient.stride() == parameter.stride()
            and gradient.untyped_storage().nbytes() == gradient.nbytes
        )
