"""Gradients of a step's parameters, added to `grad` while its backward pass runs."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headrace.memory.errors import CaptureError


@dataclass(slots=True, eq=False)
class AddedGradients:
    """Parameters of the latest forward pass.

    Attributes
    ----------
    parameters : those whose gradients are added, by position among the step's arguments.
    """

    parameters: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def called(self, step: Callable[..., Any], names: Mapping[int, str]) -> Callable[..., Any]:
        """Return the step, which notes its parameters.

        Parameters
        ----------
        names : of the parameters whose gradients are added, by position.
        """

        def run(*args: Any) -> Any:
            for position, name in names.items():
                if args[position]._backward_hooks:
                    raise CaptureError(
                        f"parameter {name!r} has a hook on its gradient, which accumulates inside "
                        "of the step: fit without accumulates=True, or remove the hook"
                    )
            self.parameters = {position: args[position] for position in names}
            return step(*args)

        return run


@dataclass(frozen=True, slots=True, eq=False)
class Adder:
    """Addition of a gradient to that of one parameter, in place as autograd adds it.

    Attributes
    ----------
    position : of the parameter among the step's arguments.
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
        parameter = self.gradients.parameters[self.position]
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
