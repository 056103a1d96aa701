"""The embedding plan: lookahead, caches and synchronisation of a training job."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.profile import Synchronisation
from headrace.errors import ArtifactError
from headrace.facades import offered_by
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
}
_PREDICTED = ("rows", "fetched_rows", "resident_rows", "exchanged_rows", "critical_rows")


@offered_by("headrace.embeddings")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EmbeddingPlan(ArtifactValue):
    """Lookahead, caches and synchronisation of a training job.

    Attributes
    ----------
    batch : examples of one, of all trainers.
    trainers, servers, readers : numbers of processes.
    lookahead : batches that a decision looks at, its own included.
    prefetch : batches between a row's fetch and its use.
    cache_bytes : of each trainer's cache.
    row_bytes : of a row with its optimizer's state.
    synchronisation : between the caches.
    rows : predicted distinct rows of a batch.
    fetched_rows : of them from the servers.
    resident_rows : in a cache while a batch is trained.
    exchanged_rows : rows and gradients between trainers in a step, in all, at the profile's
        lookahead: a shorter one moves no more of them.
    critical_rows : those of them that the next step needs.
    """

    KIND = "embedding-plan"
    SCHEMA = 1
    REMEDY = "make one with headrace embeddings plan"

    batch: int
    trainers: int
    servers: int
    readers: int
    lookahead: int
    prefetch: int
    cache_bytes: int
    row_bytes: int
    synchronisation: Synchronisation
    rows: float
    fetched_rows: float
    resident_rows: float
    exchanged_rows: float
    critical_rows: float
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fields.conform(self, EmbeddingError)
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
        return {**numbers, "synchronisation": self.synchronisation.value}, {}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str) -> "EmbeddingPlan":
        """Rebuild the plan; errors begin with `source`."""
        head = Field(artifact.head, source, ArtifactError)
        numbers: dict[str, Any] = {
            **{name: head.at(name).integer(*limits) for name, limits in _LIMITS.items()},
            **{name: head.at(name).read(fields.number) for name in _PREDICTED},
        }
        try:
            return cls(
                **numbers,
                synchronisation=head.at("synchronisation").read(Synchronisation),
                provenance=artifact.provenance,
            )
        except EmbeddingError as error:
            raise ArtifactError(f"{source}: {error}") from error
