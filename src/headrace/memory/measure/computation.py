"""The computation of a traced step, to be compared with that of another trace."""

from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import JointWithDescriptors


@dataclass(frozen=True, slots=True, eq=False)
class Computation:
    """Code of a joint graph, with the constants that it has as attributes.

    Attributes
    ----------
    code : with what its inputs and outputs are.
    """

    code: str
    constants: tuple[Any, ...]

    @classmethod
    def of(cls, joint: JointWithDescriptors) -> "Computation":
        """Return the computation of a trace."""
        module = joint.graph_module
        labels = [node.meta.get("desc") for node in module.graph.find_nodes(op="placeholder")]
        outputs = module.graph.output_node().args
        return cls(
            f"{module.code}{outputs}{labels}{joint.out_spec}",
            tuple(
                getattr(module, str(node.target)) for node in module.graph.find_nodes(op="get_attr")
            ),
        )

    def equals(self, other: "Computation | None") -> bool:
        """Return whether another trace computes the same, bit for bit."""
        return (
            other is not None
            and self.code == other.code
            and len(self.constants) == len(other.constants)
            and all(map(_is_same, self.constants, other.constants))
        )


def _is_same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    return (
        first.dtype == second.dtype and first.device == second.device and torch.equal(first, second)
    )
