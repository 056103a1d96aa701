"""Parameters that a step uses, as DistributedDataParallel with ``find_unused_parameters`` counts.

DDP sends zeros for a parameter that the backward pass did not reach. Where no rank used it, DDP
drops the mean and leaves the gradient as it was: None, as a rule. A hook cannot ask which those are
before that of the last bucket has returned, so the backward pass is followed here.
"""

from collections.abc import Mapping
from functools import partial

from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle


class GradientUse:
    """Parameters of one rank that a step has gradients of; passes under `no_sync` count, too.

    Parameters
    ----------
    parameters : that DDP averages, by name. Those that have a gradient already count as used: the
        hook of a trainer is made in the middle of a backward pass.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters: dict[str, Tensor] = {}
        self._reached: set[str] = set()
        self._handles: list[RemovableHandle] = []
        for name, parameter in parameters.items():
            self.add(name, parameter)

    def add(self, name: str, parameter: Tensor) -> None:
        """Follow one more parameter, frozen or not."""
        self._parameters[name] = parameter
        if parameter.grad is not None:
            self._reached.add(name)
        trained = parameter.requires_grad
        node = get_gradient_edge(parameter.requires_grad_()).node
        parameter.requires_grad_(trained)
        # before the node, so that the last parameter's is called before DDP hands out the bucket
        self._handles.append(node.register_prehook(partial(_reach, self._reached, name)))

    def follow_anew(self) -> None:
        """Follow the nodes that torch has made since, of a model that was wrapped again.

        Called in a backward pass, which has reached a parameter if its nodes are followed.
        """
        if not self._reached:
            self.close()
            for name, parameter in self._parameters.items():
                self.add(name, parameter)

    def unused(self) -> set[str]:
        """Return the names of the parameters without gradient in the present step."""
        # the pass reaches parameters of unused outputs as well, without a gradient
        return {
            name
            for name, parameter in self._parameters.items()
            if name not in self._reached or parameter.grad is None
        }

    def clear(self) -> None:
        """Begin the next step."""
        self._reached.clear()

    def close(self) -> None:
        """Stop following."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _reach(reached: set[str], name: str, _gradients: object) -> None:
    reached.add(name)
