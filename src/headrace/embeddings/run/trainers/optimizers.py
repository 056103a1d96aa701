"""Optimizers of embedding rows, whose state lies beside each row and travels with it.

They work on the rows that a step has gradients of: [rows, dim + state]. Their results are those of
torch's own optimizers on coalesced sparse gradients, bit for bit.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.tables import ROW_STATES


class RowUpdate(Protocol):
    """Update of rows by the options of one step."""

    def __call__(self, rows: Tensor, gradients: Tensor, step: int) -> None:
        """Update rows and their state in place.

        Parameters
        ----------
        rows : [rows, dim + state].
        gradients : [rows, dim]; not changed.
        step : number of the training step, from 1 on.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SGDUpdate:
    """Stochastic gradient descent, without state."""

    learning_rate: float
    maximize: bool = False

    def __call__(self, rows: Tensor, gradients: Tensor, step: int) -> None:
        """Update rows in place; see `RowUpdate`."""
        del step
        rows.add_(gradients, alpha=self.learning_rate if self.maximize else -self.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AdagradOptions:
    learning_rate: float
    decay: float
    eps: float
    maximize: bool = False

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, which falls with the steps before it."""
        return self.learning_rate / (1 + (step - 1) * self.decay)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return those of a parameter group."""
        return cls(
            learning_rate=_rate(options),
            decay=options["lr_decay"],
            eps=options["eps"],
            maximize=_maximize(options),
        )


class AdagradUpdate(_AdagradOptions):
    """Adagrad: a sum of squares for each number."""

    __slots__ = ()

    def __call__(self, rows: Tensor, gradients: Tensor, step: int) -> None:
        """Update rows in place; see `RowUpdate`."""
        gradients = -gradients if self.maximize else gradients
        numbers, sums = rows.tensor_split(2, dim=1)
        sums.add_(gradients.square())
        numbers.add_(gradients / sums.sqrt().add_(self.eps), alpha=-self.rate(step))


class RowWiseAdagradUpdate(_AdagradOptions):
    """Adagrad with one sum for each row, of the mean of its gradient's squares.

    It is FBGEMM's EXACT_ROWWISE_ADAGRAD, and TorchRec's RowWiseAdagrad.
    """

    __slots__ = ()

    def __call__(self, rows: Tensor, gradients: Tensor, step: int) -> None:
        """Update rows in place; see `RowUpdate`."""
        gradients = -gradients if self.maximize else gradients
        numbers, sums = rows[:, :-1], rows[:, -1:]
        sums.add_(gradients.square().mean(dim=1, keepdim=True))
        numbers.addcdiv_(gradients, sums.sqrt().add_(self.eps), value=-self.rate(step))


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseAdamUpdate:
    """Adam whose moments change only in steps that use the row: two for each number."""

    learning_rate: float
    betas: tuple[float, float]
    eps: float
    maximize: bool = False

    def __call__(self, rows: Tensor, gradients: Tensor, step: int) -> None:
        """Update rows in place; see `RowUpdate`.

        Operations are in the order of torch's: rounding differs in another one.
        """
        gradients = -gradients if self.maximize else gradients
        numbers, mean, square = rows.tensor_split(3, dim=1)
        beta1, beta2 = self.betas
        mean.add_(gradients.sub(mean).mul_(1 - beta1))
        square.add_(gradients.square().sub_(square).mul_(1 - beta2))
        rate = self.learning_rate * math.sqrt(1 - beta2**step) / (1 - beta1**step)
        numbers.add_(mean.div(square.sqrt().add_(self.eps)).mul_(-rate))


def _rate(options: Mapping[str, Any]) -> float:
    return float(options["lr"])


def _maximize(options: Mapping[str, Any]) -> bool:
    return bool(options.get("maximize", False))


_UPDATES: Mapping[str, Callable[[Mapping[str, Any]], RowUpdate]] = {
    "SGD": lambda options: SGDUpdate(learning_rate=_rate(options), maximize=_maximize(options)),
    "Adagrad": AdagradUpdate.of,
    "RowWiseAdagrad": RowWiseAdagradUpdate.of,
    "SparseAdam": lambda options: SparseAdamUpdate(
        learning_rate=_rate(options),
        betas=tuple(options["betas"]),
        eps=options["eps"],
        maximize=_maximize(options),
    ),
}
"""By the name of the class: torch's own, and TorchRec's RowWiseAdagrad, which is no dependency."""

_REFUSED = {
    "momentum": "a row would move in steps that do not use it",
    "weight_decay": "a row would shrink in steps that do not use it",
}


_SCHEDULED = {"momentum": ", and a schedule that changes it cycle_momentum=False"}


class RowOptimizer:
    """Options that a user's torch optimizer has for the embedding rows.

    Parameters
    ----------
    optimizer : torch.optim.SGD, Adagrad or SparseAdam, or TorchRec's RowWiseAdagrad.
    group : number of its parameter group with the embeddings' options.

    Attributes
    ----------
    group : as the parameter.
    state_per_row, state_per_number : numbers of the state of a row, and of each of its numbers.
    state_initial : the first value of each of them.

    Raises
    ------
    EmbeddingError : the class, or one of its options, is not served for embedding rows.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, group: int = 0) -> None:
        name = type(optimizer).__name__
        if name not in _UPDATES:
            raise EmbeddingError(
                f"the optimizer of embedding rows is {name}, needs one of {', '.join(_UPDATES)}: "
                "others update every row at every step, or keep state that is not the row's. Give "
                "the dense part its own, as optimizer=[sparse_adam, adam]"
            )
        self._optimizer = optimizer
        self.group = group
        self._updated = _UPDATES[name]
        self.state_per_row, self.state_per_number = ROW_STATES[name]
        self.state_initial = float(self._options().get("initial_accumulator_value", 0.0))
        self.update()

    def _options(self) -> Mapping[str, Any]:
        """Return the options in force: loading a state replaces the parameter groups."""
        return self._optimizer.param_groups[self.group]

    def update(self) -> RowUpdate:
        """Return the update by the options in force, such as a schedule's learning rate.

        Raises
        ------
        EmbeddingError : an option is not served.
        """
        options = self._options()
        for option, reason in _REFUSED.items():
            if options.get(option, 0.0) != 0:
                raise EmbeddingError(
                    f"{type(self._optimizer).__name__} has {option} {options[option]:g} for "
                    f"embedding rows, needs 0: {reason}. Give the embeddings a parameter group of "
                    f"their own with {option}=0{_SCHEDULED.get(option, '')}"
                )
        return self._updated(options)
