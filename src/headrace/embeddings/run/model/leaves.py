"""A batch's rows in a model's embedding modules, and ids that stand for them.

The model gets numbers instead of ids: each is the position of an id among those of all batches. A
module that looks up such numbers gets the rows of these ids, whichever of its columns they are
from; numbers that are no positions of its columns in the present batch are errors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.model.modules import EmbeddingModule

_MOST_NUMBERS = 1 << 30
"""Numbers begin with 0 again behind it: below 2^31, for models that look up by int32."""

BatchIds = Tensor | tuple[Tensor | tuple[Tensor, Tensor], ...]
"""Numbers for a batch's ids, in the form in which the model gets ids; see `Leaves.set`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ModuleRows:
    """Rows that a module looks up in, in one batch.

    Attributes
    ----------
    rows : [rows, dim].
    ids : [ids of the module's columns]: the number of each one's row, one example's after the
        other's.
    lengths : [examples]: ids of each example; None: one for each column.
    padding : row of the table's padding; None: the batch has none.
    """

    rows: Tensor
    ids: Tensor
    lengths: Tensor | None = None
    padding: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Positions:
    """Numbers of rows by position, of the module's first column to its last.

    Attributes
    ----------
    first : position of the first of them.
    rows : below 0: of another module's column.
    has_others : whether some are.
    """

    first: int
    rows: Tensor
    has_others: bool = False

    def rows_of(self, positions: Tensor) -> Tensor:
        """Return numbers of rows by position, in the form of the positions.

        Raises
        ------
        IndexError : a position is none of the module's columns.
        """
        numbers = self.rows.index_select(0, (positions - self.first).flatten())
        if self.has_others and bool((numbers < 0).any()):
            raise IndexError("a position is of another module's column")
        return numbers.reshape(positions.shape)


class Leaves:
    """Rows of batches in the embedding modules of a model.

    Parameters
    ----------
    columns : of every module, those of the data's ids that it looks up.
    bags : of every column of ids, whether an example may have any number of them.
    registered : whether the rows of a batch are parameters of the model while it is trained.
    """

    def __init__(
        self,
        modules: Sequence[EmbeddingModule],
        columns: Sequence[Sequence[int]],
        bags: Sequence[bool],
        *,
        registered: bool,
    ) -> None:
        self._modules = tuple(modules)
        self._columns = tuple(map(tuple, columns))
        self._bags = tuple(bags)
        self._registered = registered
        self._next = 0  # position of the next batch's first id
        self._positions: dict[nn.Module, _Positions] = {}
        for embedding in modules:
            embedding.module.register_forward_pre_hook(
                _Lookup(self, embedding).translate, with_kwargs=True
            )
            if registered:
                _RowsOutOfStates().register(embedding.module)

    @property
    def column_count(self) -> int:
        """Columns of ids that a batch has."""
        return len(self._bags)

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Names of the modules' weights in the model's state."""
        return tuple(embedding.weight_name for embedding in self._modules)

    def set(
        self,
        rows: Sequence[ModuleRows],
        examples: int,
        shared_lengths: Mapping[int, Tensor] | None = None,
    ) -> BatchIds:
        """Let the modules look up in a batch's rows; return numbers for its ids.

        Parameters
        ----------
        rows : of every module.
        shared_lengths : of columns of bags that a module looks up with others, by column.

        Returns
        -------
        [examples, columns] int64; where a column has bags, one for each column: [examples], or of
        bags the flat numbers and the offset of each example.

        Raises
        ------
        EmbeddingError : a column has bags that had none when the model was run.
        """
        shared_lengths, lengths = shared_lengths or {}, dict[int, Tensor]()
        for embedding, columns, own in zip(self._modules, self._columns, rows, strict=True):
            for column in columns:
                of_column = own.lengths if len(columns) == 1 else shared_lengths.get(column)
                if self._bags[column]:
                    ones = own.ids.new_ones(examples)
                    lengths[column] = ones if of_column is None else of_column
                elif of_column is not None:
                    raise EmbeddingError(
                        f"column {column}, which {embedding.name} looks up, has bags of ids, and "
                        "had one id for each example when fit ran the model: make it lists in all "
                        "data"
                    )
        counts = {column: int(own.sum()) for column, own in lengths.items()}
        starts, count = self._starts(counts, examples)
        first = 0 if self._next + count > _MOST_NUMBERS else self._next
        self._next = first + count
        for embedding, columns, own in zip(self._modules, self._columns, rows, strict=True):
            registered = self._registered and own.rows.requires_grad
            embedding.set_rows(own.rows, padding=own.padding, registered=registered)
            self._positions[embedding.module] = _positions(
                [first + starts[column] for column in columns],
                [lengths.get(column) for column in columns],
                own.ids,
                examples,
            )
        numbers = torch.arange(first, first + count, device=rows[0].ids.device)
        if not lengths:
            return numbers.reshape(len(self._bags), examples).t().contiguous()
        ends = {column: lengths[column].cumsum(0) for column in lengths}
        return tuple(
            (numbers[start:][: counts[column]], ends[column] - lengths[column])
            if column in lengths
            else numbers[start : start + examples]
            for column, start in enumerate(starts)
        )

    def _starts(self, counts: Mapping[int, int], examples: int) -> tuple[list[int], int]:
        """Return the first position of every column in a batch, and the number of its positions.

        Columns of bags are the last ones.

        Parameters
        ----------
        counts : of ids, of the columns that have bags.
        """
        starts = [0] * len(self._bags)
        position = 0
        for column in sorted(range(len(starts)), key=self._bags.__getitem__):
            starts[column] = position
            position += counts.get(column, examples)
        return starts, position

    def unregister(self) -> None:
        """Take a batch's rows from the model's parameters, which are the dense part's from then on.

        What averages a model's parameters after a step would pair them with others.
        """
        if self._registered:
            for embedding in self._modules:
                module = embedding.module
                embedding.set_rows(module.weight, padding=module.padding_idx)

    def clear(self) -> None:
        """Let the modules look up in no rows."""
        self._positions.clear()
        for embedding in self._modules:
            embedding.set_rows(embedding.module.weight.detach()[:0])

    def translated(
        self, embedding: EmbeddingModule, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a module with numbers of rows in place of positions.

        Raises
        ------
        EmbeddingError : the positions are not those of the present batch, or there is none.
        """
        positions = self._positions.get(embedding.module)
        if positions is None:
            raise EmbeddingError(
                f"{embedding.name} is used outside of a batch: iterate over the batches that fit "
                "returned, or over batches.evaluate(data)"
            )
        try:
            if args:
                return (positions.rows_of(args[0]), *args[1:]), kwargs
            return args, {**kwargs, "input": positions.rows_of(kwargs["input"])}
        except IndexError as error:
            raise EmbeddingError(
                f"{embedding.name} gets ids of other columns than it had when fit ran the model, "
                "ids that forward computes, or those of an earlier batch: give the columns as "
                "ids={...}, and use a batch before the next one is taken"
            ) from error


class _Lookup:
    """Hook before a module looks up; copies of the module look up in its rows by the same.

    Such as that of a model with averaged weights (`torch.optim.swa_utils.AveragedModel`).
    """

    def __init__(self, leaves: Leaves, embedding: EmbeddingModule) -> None:
        self._leaves = leaves
        self._embedding = embedding

    def translate(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a lookup with numbers of rows in place of positions."""
        original = self._embedding.module
        if module is not original:
            assert isinstance(module, nn.Embedding | nn.EmbeddingBag)
            copied = EmbeddingModule(name=self._embedding.name, module=module)
            copied.set_rows(original.weight, padding=original.padding_idx)
        return self._leaves.translated(self._embedding, args, kwargs)

    def __deepcopy__(self, _copied: Mapping[int, Any]) -> "_Lookup":
        return self


def _positions(
    starts: Sequence[int], lengths: Sequence[Tensor | None], ids: Tensor, examples: int
) -> _Positions:
    """Return numbers of rows by position, of columns that begin at these.

    Parameters
    ----------
    lengths : of the columns that have bags; None: of one id for each example.
    ids : numbers of rows, an example's in the order of the columns.
    """
    first = min(starts)
    if len(starts) == 1 or examples == 0:
        return _Positions(first=first, rows=ids)
    if any(own is not None for own in lengths):
        counts = [ids.new_ones(examples) if own is None else own for own in lengths]
        return _positions_of_bags(starts, counts, ids, first)
    rows = ids.new_full((starts[-1] + examples - first,), -1).reshape(-1, examples)
    columns = [(start - first) // examples for start in starts]
    rows[columns] = ids.reshape(examples, len(starts)).t()
    return _Positions(first=first, rows=rows.flatten(), has_others=len(rows) > len(columns))


def _positions_of_bags(
    starts: Sequence[int], counts: Sequence[Tensor], ids: Tensor, first: int
) -> _Positions:
    """Return numbers of rows by position, of columns of which some have bags."""
    stops = [start + int(own.sum()) for start, own in zip(starts, counts, strict=True)]
    rows = ids.new_full((max(stops) - first,), -1)
    in_all = torch.stack([*counts]).sum(0)
    begins = in_all.cumsum(0) - in_all  # of each example's ids of a column
    for start, stop, own in zip(starts, stops, counts, strict=True):
        offsets = (begins - (own.cumsum(0) - own)).repeat_interleave(own)
        places = offsets + torch.arange(stop - start, device=ids.device)
        rows[start - first : stop - first] = ids[places]
        begins = begins + own
    return _Positions(first=first, rows=rows, has_others=True)


def _remove_rows(_: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    state.pop(f"{prefix}weight", None)


class _RowsOutOfStates:
    """Leaves a batch's rows, which are a parameter now and then, out of the states of a model.

    Its hooks are no local functions: a pickle of the model has them, too.
    """

    def __init__(self) -> None:
        self._key = ""  # of the weight in the state that is being loaded

    def register(self, module: nn.Module) -> None:
        """Let a module's states be without its weight."""
        module.register_state_dict_post_hook(_remove_rows)
        module.register_load_state_dict_pre_hook(self._note_key)
        module.register_load_state_dict_post_hook(self._expect_none)

    def _note_key(
        self, _: nn.Module, _state: Mapping[str, Any], prefix: str, *_others: object
    ) -> None:
        self._key = f"{prefix}weight"

    def _expect_none(self, _: nn.Module, incompatible: Any) -> None:
        missing: list[str] = incompatible.missing_keys  # of the whole model
        if self._key in missing:
            missing.remove(self._key)
