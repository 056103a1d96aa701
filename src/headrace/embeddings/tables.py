"""Embedding tables, and groups of tables whose rows have one shape."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, NamedTuple

from headrace.embeddings.errors import EmbeddingError
from headrace.facades import public_value


class RowState(NamedTuple):
    """Numbers of an optimizer beside a row, and beside each of the row's numbers."""

    per_row: int
    per_number: int


ROW_STATES: Mapping[str, RowState] = {
    "SGD": RowState(0, 0),
    "Adagrad": RowState(0, 1),
    "RowWiseAdagrad": RowState(1, 0),
    "SparseAdam": RowState(0, 2),
}
"""By the class of the optimizer: torch's, and TorchRec's RowWiseAdagrad."""


@public_value("headrace.embeddings")
class InitialValues:
    """Values of a row before its first update.

    Attributes
    ----------
    distribution : uniform from -scale to scale, normal with deviation `scale`, or the constant
        `scale`. Numbers of a row follow from the job's seed, the table, and the row's id alone.
    scale : None: 1/sqrt(rows) of a uniform table with a fixed number of rows.
    """

    distribution: Literal["uniform", "normal", "constant"] = "uniform"
    scale: float | None = None


@public_value("headrace.embeddings")
class EmbeddingTable:
    """A table of embedding rows.

    Attributes
    ----------
    rows : its ids are 0 to rows - 1; 0: they are hashes, of 0 to 2^63 - 1.
    dim : numbers of a row that the model reads.
    padding : id whose row is never updated; None: there is none.

    Raises
    ------
    EmbeddingError : a number is out of range; a hashed table's uniform values have no scale.
    """

    name: str
    rows: int
    dim: int
    initial: InitialValues = field(default_factory=InitialValues)
    padding: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rows < 1 << 63:
            raise EmbeddingError(f"table {self.name}: rows is {self.rows}, needs 0 to 2^63 - 1")
        if self.dim < 1:
            raise EmbeddingError(f"table {self.name}: dim is {self.dim}, needs 1 or more")
        if self.rows == 0 and self.initial.scale is None:
            raise EmbeddingError(
                f"table {self.name} has hashed ids, and no number of rows to derive the scale of "
                "initial values from: give it"
            )

    @property
    def most_id(self) -> int:
        """Largest id of a row."""
        return (self.rows or 1 << 63) - 1

    @property
    def initial_scale(self) -> float:
        """Scale of the initial values, whether given or derived."""
        if self.initial.scale is not None:
            return self.initial.scale
        return 1.0 if self.initial.distribution != "uniform" else self.rows**-0.5


@public_value("headrace.embeddings")
class TableGroup:
    """Tables whose rows have one shape: they share slots of the caches.

    Attributes
    ----------
    tables : their numbers among the job's tables, rising.
    dim : numbers of a row that the model reads.
    state : numbers of the optimizer beside them, which travel with the row.
    state_initial : value of each of them at first.
    """

    tables: tuple[int, ...]
    dim: int
    state: int = 0
    state_initial: float = 0.0
    dtype: Literal["float32", "float64"] = "float32"

    @property
    def width(self) -> int:
        """Numbers of a row with its state."""
        return self.dim + self.state

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its state."""
        return self.width * (4 if self.dtype == "float32" else 8)


def table_groups(
    tables: Sequence[EmbeddingTable],
    *,
    state_per_row: int = 0,
    state_per_number: int = 0,
    state_initial: float = 0.0,
    dtype: Literal["float32", "float64"] = "float32",
) -> tuple[TableGroup, ...]:
    """Return the groups of tables, by their first table.

    Parameters
    ----------
    state_per_row, state_per_number : the optimizer's, of a row and of each of its numbers.
    """
    by_dim: dict[int, list[int]] = {}
    for number, table in enumerate(tables):
        by_dim.setdefault(table.dim, []).append(number)
    return tuple(
        TableGroup(
            tables=tuple(numbers),
            dim=dim,
            state=state_per_row + state_per_number * dim,
            state_initial=state_initial,
            dtype=dtype,
        )
        for dim, numbers in by_dim.items()
    )
