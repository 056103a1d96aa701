"""The embedding plan: lookahead, caches and synchronisation of a training job."""

from collections.abc import Mapping
from dataclasses import asdict, field
from dataclasses import fields as fields_of
from typing import Any, TypeVar

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue, stored_value
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.plan.commits import CommitTimes
from headrace.embeddings.plan.step import PredictedStep, StepCosts
from headrace.embeddings.plan.traffic import StepBytes
from headrace.embeddings.profile import Synchronisation
from headrace.errors import ArtifactError
from headrace.fields import Field
from headrace.units import size

RUNNABLE = (Synchronisation.TARGETED, Synchronisation.LRPP, Synchronisation.REPLICATED)
"""Synchronisations of caches; the others have none."""

_LIMITS: Mapping[str, tuple[int, int]] = {
    "batch": (1, 1 << 40),
    "trainers": (1, 32),
    "servers": (1, 1024),
    "readers": (1, 1024),
    "lookahead": (1, 65535),
    "prefetch": (1, 65535),
    "cache_bytes": (1, 1 << 50),
    "row_bytes": (1, 1 << 30),
    "gradient_bytes": (1, 1 << 30),
    "dense_bytes": (0, 1 << 50),
    "commit_every": (0, 1 << 40),
}
_PREDICTED = ("rows", "fetched_rows", "resident_rows", "exchanged_rows", "critical_rows")
_Values = TypeVar("_Values", StepBytes, StepCosts, CommitTimes)


@stored_value("headrace.embeddings", EmbeddingError, repr=False)
class EmbeddingPlan(
    ArtifactValue, kind="embedding-plan", schema=2, command="headrace embeddings plan"
):
    """Lookahead, caches and synchronisation of a training job.

    Attributes
    ----------
    batch : examples of one, of all trainers.
    trainers, servers, readers : numbers of processes.
    lookahead : batches that a decision looks at, its own included.
    prefetch : batches between a row's fetch and its use.
    cache_bytes : of each trainer's cache.
    row_bytes : of a row with its optimizer's state.
    gradient_bytes : of a row's gradient.
    dense_bytes : of the gradients of the model's dense part.
    commit_every : batches from one commit to the next; 0: one at every epoch's end alone.
    synchronisation : between the caches.
    rows : predicted distinct rows of a batch.
    fetched_rows : of them from the servers.
    resident_rows : in a cache while a batch is trained.
    exchanged_rows : rows and gradients between trainers in a step, in all.
    critical_rows : those of them that the next step needs.
    moved : predicted bytes of a step.
    costs : that the times were predicted from; None: they were not.
    time : of a step.
    commits : their cost.
    """

    batch: int
    trainers: int
    servers: int
    readers: int
    lookahead: int
    prefetch: int
    cache_bytes: int
    row_bytes: int
    gradient_bytes: int
    dense_bytes: int
    commit_every: int
    synchronisation: Synchronisation
    rows: float
    fetched_rows: float
    resident_rows: float
    exchanged_rows: float
    critical_rows: float
    moved: StepBytes
    costs: StepCosts | None = None
    time: PredictedStep | None = None
    commits: CommitTimes | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            if not least <= getattr(self, name) <= most:
                raise EmbeddingError(f"{name} is {getattr(self, name)}, needs {least} to {most}")
        if self.prefetch > self.lookahead:
            raise EmbeddingError(
                f"prefetch is {self.prefetch}, needs at most the lookahead, {self.lookahead}"
            )
        if self.synchronisation not in RUNNABLE:
            names = ", ".join(kind.value for kind in RUNNABLE)
            raise EmbeddingError(
                f"synchronisation is {self.synchronisation.value}, needs one of {names}"
            )

    @property
    def description(self) -> str:
        """Processes, lookahead and caches."""
        return (
            f"{self.trainers} trainers with caches of {size(self.cache_bytes)}, "
            f"{self.servers} servers, a lookahead of {self.lookahead}, "
            f"{self.synchronisation.value} synchronisation"
        )

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the head; there are no tables."""
        numbers = {name: getattr(self, name) for name in (*_LIMITS, *_PREDICTED)}
        predicted = {name: getattr(self, name) for name in ("moved", "costs", "time", "commits")}
        return {
            **numbers,
            "synchronisation": self.synchronisation.value,
            **{name: None if value is None else asdict(value) for name, value in predicted.items()},
        }, {}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str) -> "EmbeddingPlan":
        """Rebuild the plan; errors begin with `source`."""
        head = Field(artifact.head, source, ArtifactError)
        numbers: dict[str, Any] = {
            **{name: head.at(name).integer(*limits) for name, limits in _LIMITS.items()},
            **{name: head.at(name).read(fields.number) for name in _PREDICTED},
        }
        times = head.at("time")
        try:
            return cls(
                **numbers,
                moved=_values(head.at("moved"), StepBytes),
                costs=_optional(head.at("costs"), StepCosts),
                time=None if times.found is None else PredictedStep(resources_s=_seconds(times)),
                commits=_optional(head.at("commits"), CommitTimes),
                synchronisation=head.at("synchronisation").read(Synchronisation),
                provenance=artifact.provenance,
            )
        except EmbeddingError as error:
            raise ArtifactError(f"{source}: {error}") from error


def _values(node: Field, kind: type[_Values]) -> _Values:
    """Return a value whose fields are all numbers."""
    numbers: dict[str, Any] = {
        name: node.at(name).read(fields.integer if value is int else fields.number)
        for name, value in ((field.name, field.type) for field in fields_of(kind))
    }
    return kind(**numbers)


def _optional(node: Field, kind: type[_Values]) -> _Values | None:
    return None if node.found is None else _values(node, kind)


def _seconds(node: Field) -> dict[str, float]:
    resources = node.at("resources_s")
    return {name: resources.at(name).read(fields.number) for name in resources.read(fields.table)}
