"""Parameter groups of a user's optimizers that rule the rows of embedding modules."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.model.modules import EmbeddingModule
from headrace.embeddings.run.trainers.optimizers import RowOptimizer
from headrace.embeddings.tables import TableGroup


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RuledRows:
    """Groups of tables, and the optimizer of their rows.

    Attributes
    ----------
    optimizer : the user's.
    groups : of tables whose rows have one shape and one group of the optimizer's parameters.
    row_optimizers : of every group.
    """

    optimizer: torch.optim.Optimizer
    groups: tuple[TableGroup, ...]
    row_optimizers: tuple[RowOptimizer, ...]


def ruled_rows(
    modules: Sequence[EmbeddingModule], optimizers: Sequence[torch.optim.Optimizer]
) -> RuledRows:
    """Return the groups of the tables of a model's modules, which are the weights.

    Raises
    ------
    EmbeddingError : a weight is in none of the optimizers, or they are in several; an optimizer or
        one of its options is not served for rows.
    """
    rulings = [_ruling(embedding, optimizers) for embedding in modules]
    if len({id(optimizer) for optimizer, _ in rulings}) > 1:
        name = next(
            embedding.name
            for embedding, (optimizer, _) in zip(modules, rulings, strict=True)
            if optimizer is not rulings[0][0]
        )
        raise EmbeddingError(
            f"{modules[0].name} and {name} are in two optimizers, needs one for all embeddings: "
            "give them parameter groups of one"
        )
    optimizer = rulings[0][0]
    by_shape: dict[tuple[int, int, torch.dtype], list[int]] = {}
    for number, (embedding, (_, group)) in enumerate(zip(modules, rulings, strict=True)):
        shape = group, embedding.dim, embedding.module.weight.dtype
        by_shape.setdefault(shape, []).append(number)
    row_optimizers = {
        group: RowOptimizer(optimizer, group) for group in {group for group, *_ in by_shape}
    }
    groups: list[TableGroup] = []
    for (group, dim, dtype), tables in by_shape.items():
        ruling = row_optimizers[group]
        groups.append(
            TableGroup(
                tables=tuple(tables),
                dim=dim,
                state=ruling.state_per_row + ruling.state_per_number * dim,
                state_initial=ruling.state_initial,
                dtype=cast(Literal["float32", "float64"], str(dtype).removeprefix("torch.")),
            )
        )
    return RuledRows(
        optimizer=optimizer,
        groups=tuple(groups),
        row_optimizers=tuple(row_optimizers[group] for group, *_ in by_shape),
    )


def remove_parameters(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor]) -> None:
    """Remove parameters and their state from an optimizer, whose groups keep their options."""
    removed = {id(weight) for weight in weights}
    for group in optimizer.param_groups:
        stays = [id(parameter) not in removed for parameter in group["params"]]
        for column in ("params", "param_names"):
            if column in group:
                group[column] = [
                    entry for entry, remains in zip(group[column], stays, strict=True) if remains
                ]
    for weight in weights:
        optimizer.state.pop(weight, None)


class BatchParameters:
    """Rows of a batch among an optimizer's parameters from the batch to its step.

    A GradScaler divides the gradients of all parameters of an optimizer, and looks for infinite
    ones; the optimizer's own step has to leave rows alone. They are no part of the optimizer's
    states, which would fit no other moment.
    """

    def __init__(self, ruled: RuledRows) -> None:
        self._optimizer = ruled.optimizer
        self._groups = {
            table: rows.group
            for tables, rows in zip(ruled.groups, ruled.row_optimizers, strict=True)
            for table in tables.tables
        }
        self._rows: Sequence[Tensor] = ()
        optimizer = ruled.optimizer
        optimizer.register_state_dict_pre_hook(lambda *_: self._leave_out())
        optimizer.register_state_dict_post_hook(lambda *_: self._take_in())
        optimizer.register_load_state_dict_pre_hook(lambda _, state: self._with_rows(state))

    def add(self, rows: Sequence[Tensor]) -> None:
        """Add the rows of a batch, of every table, to the groups that had the weights."""
        self._rows = rows
        self._take_in()

    def remove(self) -> None:
        """Remove them."""
        self._leave_out()
        self._rows = ()

    def _take_in(self) -> None:
        for table, leaf in enumerate(self._rows):
            group = self._optimizer.param_groups[self._groups[table]]
            group["params"] = [*group["params"], leaf]

    def _with_rows(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state of the optimizer for its parameters of now, of which rows have none.

        So the rows stay among them, also where the state is another optimizer's and is refused.
        """
        groups = [{**group, "params": [*group["params"]]} for group in state["param_groups"]]
        for table in range(len(self._rows)):
            if self._groups[table] < len(groups):
                groups[self._groups[table]]["params"].append(f"rows of table {table}")
        return {**state, "param_groups": groups}

    def _leave_out(self) -> None:
        rows = {id(leaf) for leaf in self._rows}
        for group in self._optimizer.param_groups:
            group["params"] = [
                parameter for parameter in group["params"] if id(parameter) not in rows
            ]


def _ruling(
    embedding: EmbeddingModule, optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[torch.optim.Optimizer, int]:
    """Return the optimizer that has a module's weight, and the number of its parameter group."""
    weight = embedding.module.weight
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            if any(parameter is weight for parameter in group["params"]):
                return optimizer, number
    raise EmbeddingError(
        f"the weight of {embedding.name} is in no optimizer that fit got, needs one: make it with "
        "the model's parameters, or pass all optimizers"
    )
