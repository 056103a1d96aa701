"""The embedding profile: which rows the batches of a job access, how often and how soon again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue
from headrace.embeddings.errors import EmbeddingError
from headrace.errors import ArtifactError
from headrace.facades import offered_by
from headrace.fields import Field

_MOST = 1 << 40
_COUNTS = ("batch", "batches", "trainers", "counted")


@offered_by("headrace.embeddings")
class Synchronisation(Enum):
    """Exchange of rows and their gradients between trainers.

    POOLED is an all-to-all of pooled rows, forward and backward: one for each table and example
    that another trainer computes. DISTINCT is an all-to-all of each trainer's distinct rows,
    forward and backward. REPLICATED is a ring that reduces the gradients of all rows of the batch.
    LRPP is a ring over the rows that several trainers use (BagPipe, 5.2.3). TARGETED goes from the
    trainers that used a row to the one that updates it, and on to those that use it next.
    """

    POOLED = "pooled"
    DISTINCT = "distinct"
    REPLICATED = "replicated"
    LRPP = "lrpp"
    TARGETED = "targeted"


@offered_by("headrace.embeddings")
class RowTransfers(NamedTuple):
    """Rows that cross the network in one step, the mean over steps, of all trainers together.

    Attributes
    ----------
    rows : gradients of rows, or rows with their optimizer's state.
    critical_rows : those that the next step needs: others can move while it computes.
    """

    rows: float
    critical_rows: float


@offered_by("headrace.embeddings")
class TableAccesses(NamedTuple):
    """Accesses of one table's rows, in the examples that were counted.

    Attributes
    ----------
    accesses : of all rows.
    rows, rows_once : distinct rows; those that are accessed once.
    top_accesses : of the most frequent 1% of the rows.
    """

    accesses: int
    rows: int
    rows_once: int
    top_accesses: int


@offered_by("headrace.embeddings")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EmbeddingProfile(ArtifactValue):
    """Accesses to embedding rows by the batches of a job.

    Attributes
    ----------
    batch : examples of one.
    batches : that were measured.
    trainers : that share each batch.
    reuse : [lookahead]: distinct rows of a batch whose next use is so many batches later, the mean;
        at 0 those without a next use within the lookahead.
    transfers : of every synchronisation, at this lookahead.
    tables : accesses of each table, of the first `counted` examples.
    """

    KIND = "embedding-profile"
    SCHEMA = 1
    REMEDY = "make one with headrace embeddings measure"

    reuse: NDArray[np.float64]
    batch: int
    batches: int
    transfers: Mapping[Synchronisation, RowTransfers]
    trainers: int
    tables: tuple[TableAccesses, ...]
    counted: int
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields.conform(self, EmbeddingError)
        object.__setattr__(self, "reuse", np.asarray(self.reuse, np.float64))
        if self.reuse.ndim != 1 or len(self.reuse) < 2:
            raise EmbeddingError(
                "reuse needs two numbers or more: of no use, and of the next batch"
            )
        if not self.tables:
            raise EmbeddingError("tables are none, needs one or more")
        if {*self.transfers} != {*Synchronisation}:
            raise EmbeddingError("transfers need those of every synchronisation")

    @property
    def lookahead(self) -> int:
        """Batches that were looked at for a row's next use, its own included."""
        return len(self.reuse)

    @property
    def rows(self) -> float:
        """Distinct rows of a batch."""
        return float(self.reuse.sum())

    def fetched(self, lookahead: int) -> float:
        """Return the rows that are fetched for a batch, at a lookahead up to the measured one."""
        self._check(lookahead)
        return float(self.reuse[0] + self.reuse[lookahead:].sum())

    def resident(self, lookahead: int) -> float:
        """Return the rows that a cache holds while a batch is trained, at such a lookahead."""
        self._check(lookahead)
        batches = np.arange(1, lookahead)
        return self.rows + float((self.reuse[1:lookahead] * (batches - 1)).sum())

    def _check(self, lookahead: int) -> None:
        if not 1 <= lookahead <= self.lookahead:
            raise EmbeddingError(f"lookahead is {lookahead}, needs 1 to {self.lookahead}")

    @property
    def description(self) -> str:
        """Batches, and the distinct rows of one."""
        return (
            f"{self.rows:,.0f} rows in a batch of {self.batch} examples, {len(self.tables)} tables"
        )

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the head, and the tables of reuse and of tables' accesses."""
        head = {
            **{name: getattr(self, name) for name in _COUNTS},
            "transfers": {
                name.value: {column: float(rows) for column, rows in transfers._asdict().items()}
                for name, transfers in self.transfers.items()
            },
        }
        tables = {
            name: np.array([getattr(table, name) for table in self.tables], np.int64)
            for name in TableAccesses._fields
        }
        return head, {"reuse": {"rows": self.reuse}, "tables": tables}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str) -> "EmbeddingProfile":
        """Rebuild the profile; errors begin with `source`."""
        head = Field(artifact.head, source, ArtifactError)
        columns = artifact.numbers("tables", TableAccesses._fields, source)
        rows = zip(*(columns[name] for name in TableAccesses._fields), strict=True)
        transfers = {
            name: _transfers(head.at("transfers").at(name.value)) for name in Synchronisation
        }
        counts = {name: head.at(name).integer(1, _MOST) for name in _COUNTS}
        try:
            return cls(
                **counts,
                transfers=transfers,
                tables=tuple(TableAccesses(*map(int, row)) for row in rows),
                reuse=artifact.numbers("reuse", ("rows",), source)["rows"],
                provenance=artifact.provenance,
            )
        except EmbeddingError as error:
            raise ArtifactError(f"{source}: {error}") from error


def _transfers(node: Field) -> RowTransfers:
    return RowTransfers(
        rows=node.at("rows").read(fields.number),
        critical_rows=node.at("critical_rows").read(fields.number),
    )
