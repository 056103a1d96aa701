"""The embedding record: the seconds, rows and bytes of a job's steps while it ran."""

from collections.abc import Mapping
from dataclasses import field
from dataclasses import fields as dataclass_fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue, stored_value
from headrace.embeddings.changes import JobChange
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.job.job_times import KINDS, JobTimes
from headrace.embeddings.run.step_times import (
    CacherTimes,
    ReaderTimes,
    ServerTimes,
    Sums,
    TrainerTimes,
)
from headrace.errors import ArtifactError
from headrace.fields import Field

_STEADY = 4
"""A fourth of the samples is left out of steady steps, where there are so many: caches fill."""

_MOST_PROCESSES = 1024

_Times = TypeVar("_Times", bound=Sums)


@stored_value("headrace.embeddings", EmbeddingError, eq=False, repr=False)
class EmbeddingRecord(
    ArtifactValue,
    kind="embedding-record",
    schema=1,
    command="headrace embeddings run PLAN --record FILE",
):
    """Sums over the steps of a job, by sample of time and process.

    Attributes
    ----------
    batch : examples of one, of all trainers.
    trainers, servers, readers : numbers of processes.
    ideal : whether no rows were fetched, exchanged or written back: results are wrong then.
    ideal_step_s : of a step of such a job, measured; 0: none is known.
    end_s : [samples]: end of each, since the job began.
    tables : of "trainer", "cacher", "reader" and "server" columns with a row for each sample and
        process: `sample`, `number` of the process, and the sums that `TrainerTimes`, `CacherTimes`,
        `ReaderTimes` and `ServerTimes` have.
    changes : of lookahead, prefetch and shares, which followed the job.
    """

    batch: int
    trainers: int
    servers: int
    readers: int
    end_s: NDArray[np.float64]
    tables: Mapping[str, Mapping[str, NDArray[Any]]]
    ideal: bool = False
    ideal_step_s: float = 0.0
    provenance: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[JobChange, ...] = ()

    def __post_init__(self) -> None:
        if len(self.end_s) == 0 or self.steps.batches == 0:
            raise EmbeddingError("the record has no steps")

    @classmethod
    def of(
        cls,
        times: JobTimes,
        *,
        batch: int,
        trainers: int,
        servers: int,
        readers: int,
        ideal: bool = False,
        ideal_step_s: float = 0.0,
    ) -> "EmbeddingRecord":
        """Return the record of a job's samples.

        Raises
        ------
        EmbeddingError : they have no steps.
        """
        return cls(
            batch=batch,
            trainers=trainers,
            servers=servers,
            readers=readers,
            ideal=ideal,
            ideal_step_s=ideal_step_s,
            end_s=np.array([sample.end_s for sample in times.samples], np.float64),
            tables={kind: _columns(times, kind) for kind in KINDS},
            changes=times.changes,
        )

    @property
    def samples(self) -> int:
        """Intervals of the job."""
        return len(self.end_s)

    @property
    def steady(self) -> int:
        """First sample of steady steps: later ones than those that fill the caches."""
        first = self.samples // _STEADY
        later = self.sums("trainer", first=first).batches
        return first if later > 0 else 0

    def sums(self, kind: str, number: int | None = None, *, first: int = 0) -> Sums:
        """Return sums from a sample on.

        Parameters
        ----------
        kind : of processes: "trainer", "cacher", "reader" or "server".
        number : of one process; None: of all of the kind.
        """
        columns = self.tables[kind]
        rows = columns["sample"] >= first
        if number is not None:
            rows &= columns["number"] == number
        return KINDS[kind](
            **{name: columns[name][rows].sum().item() for name in _names(KINDS[kind])}
        )

    @property
    def steps(self) -> TrainerTimes:
        """Steady steps of all trainers."""
        return self._steady_sums(TrainerTimes)

    @property
    def cacher(self) -> CacherTimes:
        """The cacher's work on steady steps."""
        return self._steady_sums(CacherTimes)

    @property
    def reading(self) -> ReaderTimes:
        """All readers' work on steady steps."""
        return self._steady_sums(ReaderTimes)

    @property
    def serving(self) -> ServerTimes:
        """All servers' work on steady steps."""
        return self._steady_sums(ServerTimes)

    def _steady_sums(self, times: type[_Times]) -> _Times:
        kind = next(name for name, of_kind in KINDS.items() if of_kind is times)
        sums = self.sums(kind, first=self.steady)
        assert isinstance(sums, times)
        return sums

    @property
    def step_s(self) -> float:
        """Seconds of a steady step, the mean over trainers."""
        return self.steps.step_s / self.steps.batches

    @property
    def batches(self) -> int:
        """Batches that the job trained on, those included that a loss undid."""
        # a trainer that was lost may have fewer: others went on
        return max(self.sums("trainer", trainer).batches for trainer in range(self.trainers))

    @property
    def without_rows_s(self) -> float:
        """Seconds of a steady step without all that rows take: computing, and the dense average."""
        steps = self.steps
        return (steps.compute_s + steps.dense_wait_s) / steps.batches

    @property
    def description(self) -> str:
        """Batches, and the time of a step."""
        ideal = ", an ideal job without rows" if self.ideal else ""
        return (
            f"{self.batches} batches of {self.batch} examples, {1e3 * self.step_s:.1f} ms a step, "
            f"{self.trainers} trainers{ideal}"
        )

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the numbers of processes, and the samples."""
        head = {
            name: getattr(self, name)
            for name in ("batch", "trainers", "servers", "readers", "ideal", "ideal_step_s")
        }
        if self.changes:
            head["changes"] = [change.to_fields() for change in self.changes]
        return head, {**self.tables, "samples": {"end_s": self.end_s}}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str) -> "EmbeddingRecord":
        """Rebuild the record; errors begin with `source`."""
        head = Field(artifact.head, source, ArtifactError)
        counts = {
            name: head.at(name).integer(1, _MOST_PROCESSES)
            for name in ("trainers", "servers", "readers")
        }
        end_s = artifact.numbers("samples", ["end_s"], source)["end_s"]
        numbers = {"trainer": "trainers", "reader": "readers", "server": "servers"}
        tables: dict[str, Mapping[str, NDArray[Any]]] = {}
        for kind, sums in KINDS.items():
            columns = artifact.numbers(kind, ("sample", "number", *_names(sums)), source)
            limits = {"sample": len(end_s), "number": counts.get(numbers.get(kind, ""), 1)}
            for name, column in columns.items():
                most = limits.get(name, np.inf)
                if not np.all((column >= 0) & (column < most)):
                    raise ArtifactError(
                        f"{source}: column '{kind}.{name}' needs numbers of 0 to below {most}"
                    )
            tables[kind] = columns
        try:
            changes = tuple(
                JobChange.from_fields(change, f"change {number}")
                for number, change in enumerate(head.at("changes", default=[]).read(fields.items))
            )
            return cls(
                batch=head.at("batch").integer(1, 1 << 40),
                **counts,
                ideal=head.at("ideal").read(fields.boolean),
                ideal_step_s=head.at("ideal_step_s").read(fields.number),
                end_s=end_s.astype(np.float64),
                tables=tables,
                changes=changes,
                provenance=artifact.provenance,
            )
        except EmbeddingError as error:
            raise ArtifactError(f"{source}: {error}") from error


def _names(sums: type[Sums]) -> tuple[str, ...]:
    return tuple(own.name for own in dataclass_fields(sums))


def _columns(times: JobTimes, kind: str) -> dict[str, NDArray[Any]]:
    """Return the sums of a kind of process as columns."""
    rows = [
        {"sample": sample, "number": number, **sums.to_fields()}
        for sample, interval in enumerate(times.samples)
        for (own, number), sums in interval.sums.items()
        if own == kind
    ]
    zero = KINDS[kind]().to_fields()
    types = {"sample": np.int64, "number": np.int64}
    return {
        name: np.array(
            [row[name] for row in rows],
            types.get(name, np.int64 if isinstance(zero.get(name), int) else np.float64),
        )
        for name in ("sample", "number", *zero)
    }
