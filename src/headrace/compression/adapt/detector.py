"""Norms of accumulated gradients."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.staging import download


class Detector:
    """Accumulates the aggregated gradient of every layer, and gives norms of its mean.

    It keeps one gradient of memory (allocated when first needed), and with `noisy` one number per
    layer. Adding costs one pass over the gradient, in place.

    Parameters
    ----------
    shapes : of each layer.
    noisy : also keep the squared norm of every step, for the deviation from the mean.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], *, noisy: bool = False) -> None:
        self._sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        self._numbers = {name: number for number, name in enumerate(shapes)}
        self._sums: dict[str, Tensor] = {}
        self._memory: Tensor | None = None
        self._noisy = noisy
        self._steps: dict[str, int] = {}
        self._squares = torch.zeros(len(shapes), dtype=torch.float64, device="cpu")

    @property
    def memory_bytes(self) -> int:
        """Bytes of the accumulated gradient; 0 before the first `add`."""
        return 0 if self._memory is None else self._memory.nbytes

    def add(self, name: str, gradient: Tensor, *, scale: float = 1.0) -> None:
        """Add a step's aggregated gradient of a layer.

        Parameters
        ----------
        gradient : of the layer's elements, in any shape and floating type.
        scale : factor that it carries (of a gradient scaler), taken out of the sum.
        """
        if self._memory is None or self._memory.device != gradient.device:
            self._allocate(gradient.device)
        gradient = gradient.detach()
        self._sums[name].add_(gradient.reshape(-1), alpha=1 / scale)
        self._steps[name] = self._steps.get(name, 0) + 1
        if self._noisy:
            norm = torch.linalg.vector_norm(gradient, dtype=torch.float32).double() / scale
            self._squares[self._numbers[name]] += norm * norm

    def norms(self) -> dict[str, float]:
        """Return the norm of the mean gradient of every layer; of one without gradient 0."""
        names = list(self._steps)
        if not names:
            return dict.fromkeys(self._sizes, 0.0)
        sum_norms = torch.stack([torch.linalg.vector_norm(self._sums[name]) for name in names])
        sums = dict(zip(names, download(sum_norms).tolist(), strict=True))
        return {
            name: sums[name] / self._steps[name] if name in sums else 0.0 for name in self._sizes
        }

    def noise(self, norms: Mapping[str, float]) -> dict[str, float] | None:
        """Return the root mean squared distance of the steps' gradients from their mean."""
        if not self._noisy:
            return None
        squares = dict(zip(self._sizes, download(self._squares).tolist(), strict=True))
        return {
            name: math.sqrt(max(0.0, squares[name] / steps - norms[name] ** 2))
            for name, steps in self._steps.items()
        }

    def reset(self) -> None:
        """Begin anew; the memory is kept."""
        if self._memory is not None:
            self._memory.zero_()
        self._steps.clear()
        self._squares.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the accumulated sums: tensors by name, and numbers."""
        sums = {name: self._sums[name].clone() for name in self._steps}
        return {"sums": sums, "steps": dict(self._steps), "squares": self._squares.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`; layers that this model does not have are left out."""
        self.reset()
        for name, total in state["sums"].items():
            if name in self._sizes:
                self.add(name, total)
                self._steps[name] = state["steps"][name]
        if len(state["squares"]) == len(self._squares):
            self._squares.copy_(state["squares"])

    def _allocate(self, device: torch.device) -> None:
        memory = torch.zeros(sum(self._sizes.values()), dtype=torch.float32, device=device)
        if self._memory is not None:  # loaded elsewhere
            memory.copy_(self._memory)
        self._squares = self._squares.to(device)
        self._sums = dict(zip(self._sizes, memory.split(list(self._sizes.values())), strict=True))
        self._memory = memory
