"""The embedding profile: which rows the batches of a job access, how often and how soon again."""

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue, stored_value
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
class StepRows(NamedTuple):
    """Rows that a step with caches moves, the mean over steps, of all trainers together.

    Attributes
    ----------
    used : rows of the trainers' shares of a batch; one that two of them use counts twice.
    listed : of them, and those that a trainer receives for its next batch.
    fetched : from the servers, by every trainer that gets one.
    evicted : written back to the servers.
    critical_gradients, critical_rows : between trainers, before the next step.
    delayed_gradients, delayed_rows : between trainers, while the next step computes.
    place_bytes : of the numbers that say which row each id of an example is.
    """

    used: float
    listed: float
    fetched: float
    evicted: float
    critical_gradients: float
    critical_rows: float
    delayed_gradients: float
    delayed_rows: float
    place_bytes: float

    @property
    def critical(self) -> float:
        """Rows and gradients between trainers before the next step."""
        return self.critical_gradients + self.critical_rows

    @property
    def exchanged(self) -> float:
        """Rows and gradients between trainers."""
        return self.critical + self.delayed_gradients + self.delayed_rows


@offered_by("headrace.embeddings")
class RowReuse(NamedTuple):
    """Rows of a batch by the batches to their next use, [lookahead] each, the mean over batches.

    At 0 are those without a next use within the lookahead.

    Attributes
    ----------
    rows : distinct rows.
    users, next_users : the trainers that use them, and those of the next use.
    receivers : trainers of the next use alone.
    returned : trainers of the next use but for the one that updates the row.
    """

    rows: NDArray[np.float64]
    users: NDArray[np.float64]
    next_users: NDArray[np.float64]
    receivers: NDArray[np.float64]
    returned: NDArray[np.float64]


@offered_by("headrace.embeddings")
class ExampleBytes(NamedTuple):
    """Bytes of messages.

    Attributes
    ----------
    fields : of an example's numbers, label and lengths of bags.
    ids : of a batch's ids, as readers send them.
    id : of one id of a row that is fetched or evicted, as the cacher sends it.
    places : of a batch's ids as numbers of rows in its trainers' shares.
    replicated_places : likewise, where every trainer has all rows.
    """

    fields: float
    ids: float
    id: float
    places: float
    replicated_places: float


@offered_by("headrace.embeddings")
class ProcessorSeconds(NamedTuple):
    """Processor time of the processes of a job, as measured on one machine.

    Attributes
    ----------
    read : of a reader, for an example.
    decide : of the cacher, for an example.
    serve : of a server, for a row that it gives or takes.
    train : of a trainer, for a row that it uses: read from its cache, and updated.
    exchange : of a trainer, for a gradient or row that it sends to another one: gathered, and its
        counterpart received and written.
    """

    read: float = 0.0
    decide: float = 0.0
    serve: float = 0.0
    train: float = 0.0
    exchange: float = 0.0


_UNMEASURED = ProcessorSeconds()


@stored_value("headrace.embeddings", EmbeddingError, eq=False, repr=False)
class EmbeddingProfile(
    ArtifactValue, kind="embedding-profile", schema=2, command="headrace embeddings measure"
):
    """Accesses to embedding rows by the batches of a job.

    Attributes
    ----------
    batch : examples of one.
    batches : that were measured.
    trainers : that share each batch.
    reuse : rows by the batches to their next use.
    lrpp : by lookahead, rows that a step with LRPP caches moves.
    example_bytes : of messages.
    processor_seconds : zeros: they were not measured.
    transfers : of every synchronisation, at this lookahead.
    tables : accesses of each table, of the first `counted` examples.
    """

    reuse: RowReuse
    lrpp: Mapping[int, StepRows]
    example_bytes: ExampleBytes
    batch: int
    batches: int
    transfers: Mapping[Synchronisation, RowTransfers]
    trainers: int
    tables: tuple[TableAccesses, ...]
    counted: int
    processor_seconds: ProcessorSeconds = _UNMEASURED
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = (np.asarray(column, np.float64) for column in self.reuse)
        object.__setattr__(self, "reuse", RowReuse(*columns))
        shapes = {column.shape for column in self.reuse}
        if len(shapes) != 1 or self.reuse.rows.ndim != 1 or len(self.reuse.rows) < 2:
            raise EmbeddingError(
                "reuse needs columns of two numbers or more: of no use, and of the next batch"
            )
        if self.lookahead not in self.lrpp:
            raise EmbeddingError(f"lrpp has no rows at the lookahead, {self.lookahead}")
        if not self.tables:
            raise EmbeddingError("tables are none, needs one or more")
        if {*self.transfers} != {*Synchronisation}:
            raise EmbeddingError("transfers need those of every synchronisation")

    @property
    def lookahead(self) -> int:
        """Batches that were looked at for a row's next use, its own included."""
        return len(self.reuse.rows)

    @property
    def rows(self) -> float:
        """Distinct rows of a batch."""
        return float(self.reuse.rows.sum())

    def fetched(self, lookahead: int) -> float:
        """Return the rows that are fetched for a batch, at a lookahead up to the measured one."""
        self._check(lookahead)
        return float(self.reuse.rows[0] + self.reuse.rows[lookahead:].sum())

    def resident(self, lookahead: int) -> float:
        """Return the rows that a cache holds while a batch is trained, at such a lookahead."""
        self._check(lookahead)
        batches = np.arange(1, lookahead)
        return self.rows + float((self.reuse.rows[1:lookahead] * (batches - 1)).sum())

    def dirty(self, lookahead: int, batches: int) -> float:
        """Return the rows in the caches that so many batches have updated, which a commit writes.

        A row whose next use is g batches away stays for as many, and counts at each of them.
        """
        self._check(lookahead)
        gaps = np.arange(1, lookahead)
        return float((self.reuse.rows[1:lookahead] * np.minimum(gaps, batches)).sum())

    def step_rows(self, synchronisation: Synchronisation, lookahead: int) -> StepRows:
        """Return the rows that a step moves, at a lookahead up to the measured one.

        Those of LRPP are interpolated between the lookaheads that were measured.

        Raises
        ------
        EmbeddingError : the synchronisation has no caches, or the lookahead is out of range.
        """
        self._check(lookahead)
        if synchronisation is Synchronisation.TARGETED:
            return self._targeted(lookahead)
        if synchronisation is Synchronisation.REPLICATED:
            return self._replicated(lookahead)
        if synchronisation is Synchronisation.LRPP:
            measured = sorted(self.lrpp)
            columns = zip(*(self.lrpp[number] for number in measured), strict=True)
            return StepRows(*(float(np.interp(lookahead, measured, column)) for column in columns))
        raise EmbeddingError(f"synchronisation is {synchronisation.value}, which has no caches")

    def _targeted(self, lookahead: int) -> StepRows:
        reuse, stay, later = self.reuse, slice(1, lookahead), slice(2, lookahead)
        gradients = reuse.users - reuse.rows
        used, critical = reuse.users.sum(), slice(1, min(2, lookahead))
        return StepRows(
            used=float(used),
            listed=float(used + reuse.receivers[stay].sum()),
            fetched=float(used - reuse.next_users[stay].sum()),
            evicted=self.fetched(lookahead),
            critical_gradients=float(gradients[critical].sum()),
            critical_rows=float(reuse.returned[critical].sum()),
            delayed_gradients=float(gradients.sum() - gradients[critical].sum()),
            delayed_rows=float(reuse.returned[later].sum()),
            place_bytes=self.example_bytes.places,
        )

    def _replicated(self, lookahead: int) -> StepRows:
        others = (self.trainers - 1) * self.rows
        return StepRows(
            used=self.trainers * self.rows,
            listed=self.trainers * self.rows,
            fetched=self.trainers * self.fetched(lookahead),
            evicted=self.fetched(lookahead),
            critical_gradients=others,
            critical_rows=others,
            delayed_gradients=0.0,
            delayed_rows=0.0,
            place_bytes=self.example_bytes.replicated_places,
        )

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
            "example_bytes": _floats(self.example_bytes),
            "processor_seconds": _floats(self.processor_seconds),
            "transfers": {
                name.value: _floats(transfers) for name, transfers in self.transfers.items()
            },
        }
        tables = {
            name: np.array([getattr(table, name) for table in self.tables], np.int64)
            for name in TableAccesses._fields
        }
        lrpp = {
            name: np.array([getattr(rows, name) for rows in self.lrpp.values()], np.float64)
            for name in StepRows._fields
        }
        lrpp["lookahead"] = np.array([*self.lrpp], np.float64)
        return head, {"reuse": self.reuse._asdict(), "lrpp": lrpp, "tables": tables}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str) -> "EmbeddingProfile":
        """Rebuild the profile; errors begin with `source`."""
        head = Field(artifact.head, source, ArtifactError)
        columns = artifact.numbers("tables", TableAccesses._fields, source)
        rows = zip(*(columns[name] for name in TableAccesses._fields), strict=True)
        transfers = {
            name: _numbers(head.at("transfers").at(name.value), RowTransfers)
            for name in Synchronisation
        }
        counts = {name: head.at(name).integer(1, _MOST) for name in _COUNTS}
        reuse = artifact.numbers("reuse", RowReuse._fields, source)
        lrpp = artifact.numbers("lrpp", (*StepRows._fields, "lookahead"), source)
        lrpp_rows = zip(*(lrpp[name] for name in StepRows._fields), strict=True)
        try:
            return cls(
                **counts,
                transfers=transfers,
                tables=tuple(TableAccesses(*map(int, row)) for row in rows),
                reuse=RowReuse(*(reuse[name] for name in RowReuse._fields)),
                lrpp={
                    int(lookahead): StepRows(*map(float, row))
                    for lookahead, row in zip(lrpp["lookahead"], lrpp_rows, strict=True)
                },
                example_bytes=_numbers(head.at("example_bytes"), ExampleBytes),
                processor_seconds=_numbers(head.at("processor_seconds"), ProcessorSeconds),
                provenance=artifact.provenance,
            )
        except EmbeddingError as error:
            raise ArtifactError(f"{source}: {error}") from error


def _floats(numbers: RowTransfers | ExampleBytes | ProcessorSeconds) -> dict[str, float]:
    return {name: float(number) for name, number in numbers._asdict().items()}


_Numbers = TypeVar("_Numbers", RowTransfers, ExampleBytes, ProcessorSeconds)


def _numbers(node: Field, kind: type[_Numbers]) -> _Numbers:
    """Return a tuple of numbers of a head."""
    return kind(**{name: node.at(name).read(fields.number) for name in kind._fields})
