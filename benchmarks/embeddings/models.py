"""The paper's recommendation models (Table 5.2) as torch modules, and the area under the ROC."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

INTEGERS = 13
"""Features that are numbers, of Criteo's data sets."""


def _layers(sizes: Sequence[int], *, end: bool) -> nn.Sequential:
    """Return linear layers with ReLU after each, but after the last one if it is the `end`."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[: -1 if end else None])


class DLRM(nn.Module):
    """Dense part of DLRM: 2,962,289 parameters with 26 tables of dimension 48.

    The top layer takes each pair's dot product of the 27 vectors, and the bottom layer's output:
    399 numbers.
    """

    def __init__(self, tables: int = 26, dim: int = 48, integers: int = INTEGERS) -> None:
        super().__init__()
        self.bottom = _layers((integers, 512, 256, 64, dim), end=False)
        pairs = (tables + 1) * tables // 2
        self.top = _layers((pairs + dim, 1024, 1024, 1024, 256, 128, 1), end=True)
        self._pairs = torch.triu_indices(tables + 1, tables + 1, 1)

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        """Return logits: [examples].

        Parameters
        ----------
        dense : [examples, integers].
        rows : [examples, tables, dim]: each table's pooled rows.
        """
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom[:, None], rows], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        pairs = products[:, self._pairs[0], self._pairs[1]]
        return self.top(torch.cat([bottom, pairs], dim=1))[:, 0]


class WideAndDeep(nn.Module):
    """Dense part of Wide & Deep: 136,673 parameters with 26 tables of dimension 48."""

    def __init__(self, tables: int = 26, dim: int = 48, integers: int = INTEGERS) -> None:
        super().__init__()
        self.deep = _layers((integers, 256, 256, 256), end=False)
        self.last = nn.Linear(256 + tables * dim, 1)

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        """Return logits; see `DLRM.forward`."""
        return self.last(torch.cat([self.deep(dense), rows.flatten(1)], dim=1))[:, 0]


MODELS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "DLRM": DLRM,
    "Wide & Deep": WideAndDeep,
}
"""By name: of tables, dimension and features that are numbers."""


def parameters_of(model: nn.Module) -> int:
    """Return the number of a model's parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def auc(labels: NDArray[np.float32], logits: NDArray[np.floating]) -> float:
    """Return the area under the ROC curve: how often a click's logit is above another example's.

    Equal logits count half. NaN: the labels are all alike.
    """
    order = np.argsort(logits, kind="stable")
    _, inverse, counts = np.unique(logits[order], return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[inverse]
    clicks = labels[order] > 0
    positive, negative = int(clicks.sum()), int((~clicks).sum())
    if positive == 0 or negative == 0:
        return float("nan")
    return float((ranks[clicks].sum() - positive * (positive + 1) / 2) / (positive * negative))
