"""A batch's rows in a model's embedding modules, and ids that stand for them.

The model gets numbers instead of ids: each is the position of an id among the batch's. A module
that looks up such numbers gets the rows of these ids, whichever of its columns they are from;
numbers that are no positions of its columns are errors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.modules import EmbeddingModule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ModuleRows:
    """Rows that a module looks up in, in one batch.

    Attributes
    ----------
    rows : [rows, dim].
    ids : [examples * columns of the module]: the number of each id's row, one example's after the
        other's.
    """

    rows: Tensor
    ids: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Positions:
    """Numbers of rows by position, of the module's first column to its last.

    Attributes
    ----------
    first : position of the first of them.
    rows : below 0: of another module's column.
    """

    first: int
    rows: Tensor

    def rows_of(self, positions: Tensor) -> Tensor:
        """Return numbers of rows by position, in the form of the positions."""
        numbers = self.rows.index_select(0, (positions - self.first).flatten())
        return numbers.reshape(positions.shape)


class Leaves:
    """Rows of batches in the embedding modules of a model.

    Parameters
    ----------
    columns : of every module, those of the data's ids that it looks up.
    count : columns of ids.
    registered : whether the rows of a batch are parameters of the model while it is trained.
    """

    def __init__(
        self,
        modules: Sequence[EmbeddingModule],
        columns: Sequence[Sequence[int]],
        count: int,
        *,
        registered: bool,
    ) -> None:
        self._modules = tuple(modules)
        self._columns = tuple(map(tuple, columns))
        self._count = count
        self._registered = registered
        self._positions: dict[nn.Module, _Positions] = {}
        self._names: dict[nn.Module, str] = {
            embedding.module: embedding.name for embedding in modules
        }
        for embedding in modules:
            embedding.module.register_forward_pre_hook(self._translate, with_kwargs=True)
            if registered:
                _leave_out_of_states(embedding.module)

    def set(self, rows: Sequence[ModuleRows], examples: int) -> Tensor:
        """Let the modules look up in a batch's rows; return numbers for its ids.

        Parameters
        ----------
        rows : of every module.

        Returns
        -------
        ids : [examples, columns] int64.
        """
        device = rows[0].ids.device
        for embedding, columns, own in zip(self._modules, self._columns, rows, strict=True):
            embedding.set_rows(own.rows, registered=self._registered and own.rows.requires_grad)
            self._positions[embedding.module] = _positions(columns, own.ids, examples)
        numbers = torch.arange(self._count * examples, device=device)
        return numbers.reshape(self._count, examples).t().contiguous()

    def clear(self) -> None:
        """Let the modules look up in no rows."""
        self._positions.clear()
        for embedding in self._modules:
            embedding.set_rows(embedding.module.weight.detach()[:0])

    def _translate(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replace positions by numbers of rows, in the arguments of a module."""
        name = self._names[module]
        positions = self._positions.get(module)
        if positions is None:
            raise EmbeddingError(
                f"{name} is used outside of a batch: iterate over the batches that fit returned, "
                "or over batches.evaluate(data)"
            )
        try:
            if args:
                return (positions.rows_of(args[0]), *args[1:]), kwargs
            return args, {**kwargs, "input": positions.rows_of(kwargs["input"])}
        except IndexError as error:
            raise EmbeddingError(
                f"{name} gets ids of other columns than it had when fit ran the model, or ids that "
                "forward computes: give the columns as ids={...}"
            ) from error


def _positions(columns: Sequence[int], ids: Tensor, examples: int) -> _Positions:
    first, last = columns[0], columns[-1]
    if first == last:
        return _Positions(first=first * examples, rows=ids)
    rows = ids.new_full((last + 1 - first, examples), -1)
    rows[[column - first for column in columns]] = ids.reshape(examples, len(columns)).t()
    return _Positions(first=first * examples, rows=rows.flatten())


def _leave_out_of_states(module: nn.Module) -> None:
    """Leave a batch's rows, which are a parameter now and then, out of the states of a model."""

    def remove(_: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
        state.pop(f"{prefix}weight", None)

    def expect_none(_: nn.Module, incompatible: Any) -> None:
        missing: list[str] = incompatible.missing_keys
        missing[:] = [key for key in missing if key.rpartition(".")[2] != "weight"]

    module.register_state_dict_post_hook(remove)
    module.register_load_state_dict_post_hook(expect_none)
