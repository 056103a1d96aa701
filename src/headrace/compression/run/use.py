"""Parameters that a step uses, as DistributedDataParallel with ``find_unused_parameters`` counts.

DDP sends zeros for a parameter that the backward pass did not reach. Where no rank used it, DDP
drops the mean and leaves the gradient as it was: None, as a rule. A hook cannot ask which those are
before that of the last bucket has returned, so the backward pass is followed here.
"""

from collections.abc import Mapping
from functools import partial

from torch import Tensor
from torch.autograd.graph import get_gradient_edge


class GradientUse:
    """Parameters of one rank that a step has gradients of; passes under `no_sync` count, too.

    Parameters
    ----------
    parameters : that require gradients, by name. Those that have one already count as used: the
        hook of a trainer is made in the middle of a backward pass.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._reached = {name for name, p in parameters.items() if p.grad is not None}
        # before the node, so that the last parameter's is called before DDP hands out the bucket
        self._handles = [
            get_gradient_edge(parameter).node.register_prehook(partial(_reach, self._reached, name))
            for name, parameter in parameters.items()
        ]

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


def _reach(reached: set[str], name: str, _gradients: object) -> None:
    reached.add(name)
