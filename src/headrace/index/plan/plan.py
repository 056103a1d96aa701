"""The index plan: a configuration for a workload, with predictions, trials and runners-up."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from headrace import fields
from headrace.artifact import Artifact, Table, columns_of
from headrace.artifact_value import ArtifactValue, stored_value
from headrace.errors import ArtifactError
from headrace.fields import Field
from headrace.index.configuration import Configuration
from headrace.index.errors import ChoiceError
from headrace.index.profile import TraceEncoding
from headrace.index.tables import LEAVES

_MOST_CANDIDATES = 4096

SPREAD = "trial_spread"
"""Column that plans of earlier versions lack."""

CANDIDATES: dict[str, type] = {
    "predicted_per_s": np.float64,
    "predicted_bytes_per_key": np.float64,
    "read_ns": np.float64,
    "write_ns": np.float64,
    "trials": np.int32,
    "trial_per_s": np.float64,
    "trial_bytes_per_key": np.float64,
    **{f"{name}_leaves": np.int64 for name in LEAVES},
}
"""Columns of the table of candidates, in the order of the head's "configurations"."""


@stored_value("headrace.index", ArtifactError)
class ConfigurationCandidate:
    """A configuration with what is known of it for the workload.

    Attributes
    ----------
    predicted_per_s, predicted_bytes_per_key : by the throughput model.
    read_ns, write_ns : time of a find and of an insert, for the frontier.
    trials : how many times the sample was run; without, the next are 0.
    trial_per_s : operations per second, expected by all trials and the prediction.
    trial_bytes_per_key : at the end of the sample.
    trial_spread : distance of the quartiles of the trials' rates over their median; None: one trial
        or none, or a plan of an earlier version.
    leaves : at the end of the sample, by type, in the order of `tables.LEAVES`.
    """

    configuration: Configuration
    predicted_per_s: float
    predicted_bytes_per_key: float
    read_ns: float = 0.0
    write_ns: float = 0.0
    trials: int = 0
    trial_per_s: float = 0.0
    trial_bytes_per_key: float = 0.0
    trial_spread: float | None = None
    leaves: tuple[int, ...] = (0,) * len(LEAVES)

    @property
    def per_s(self) -> float:
        """Operations per second: tried, else predicted."""
        return self.trial_per_s if self.trials else self.predicted_per_s

    @property
    def bytes_per_key(self) -> float:
        """Bytes per key: tried, else predicted."""
        return self.trial_bytes_per_key if self.trials else self.predicted_bytes_per_key


@stored_value("headrace.index", ArtifactError, eq=False, repr=False)
class IndexPlan(ArtifactValue, kind="index-plan", schema=1, command="headrace index plan"):
    """The best configuration found for a workload.

    Attributes
    ----------
    candidates : the best first: those that were tried, then those that were only predicted, each
        by operations per second; those above the cap are last.
    encoding : of the profile that it was made for.
    profile_digest : of that profile.
    most_bytes_per_key : cap of memory; None: no cap.
    settings : limits of the trials, the model's digest, and how the frontier was found: "frontier"
        is "predicted" or "measured".
    provenance : sources; not part of the digest.
    """

    candidates: Sequence[ConfigurationCandidate]
    encoding: TraceEncoding
    profile_digest: str
    most_bytes_per_key: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The best configuration, its figures, and how many were compared."""
        chosen = self.chosen
        return (
            f"{chosen.configuration.name}, {chosen.per_s:,.0f} operations/s, "
            f"{chosen.bytes_per_key:.4g} bytes per key, best of {len(self.candidates)}"
        )

    @property
    def chosen(self) -> ConfigurationCandidate:
        """The best candidate."""
        return self.candidates[0]

    @property
    def configuration(self) -> Configuration:
        """Configuration of the best candidate."""
        return self.chosen.configuration

    def verify(self) -> None:
        """Check that the candidates are in order, and the chosen one is within the cap.

        Raises
        ------
        ChoiceError : naming the two candidates, or the figure and the cap.
        """
        if not within(self.chosen, self.most_bytes_per_key):
            raise ChoiceError(
                f"candidate 0 takes {self.chosen.bytes_per_key:.4g} bytes per key, the cap is "
                f"{self.most_bytes_per_key:g}"
            )
        ranks = [rank(candidate, self.most_bytes_per_key) for candidate in self.candidates]
        for place, (first, second) in enumerate(pairwise(ranks)):
            if second < first:
                raise ChoiceError(
                    f"candidate {place + 1} ({self.candidates[place + 1].configuration.name}) is "
                    f"better than candidate {place} ({self.candidates[place].configuration.name})"
                )

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""
        head = {
            "configurations": [candidate.configuration.to_head() for candidate in self.candidates],
            "profile_digest": self.profile_digest,
            "features": dict(self.encoding.features),
            "most_bytes_per_key": self.most_bytes_per_key,
            "settings": dict(self.settings),
        }
        return head, {**self.encoding.to_tables(), "candidates": self._table()}

    def _table(self) -> dict[str, np.ndarray]:
        table = columns_of([_row(candidate) for candidate in self.candidates], CANDIDATES)
        spreads = [candidate.trial_spread for candidate in self.candidates]
        if any(spread is not None for spread in spreads):
            table[SPREAD] = np.array([-1.0 if s is None else s for s in spreads], np.float64)
        return table

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "index plan") -> "IndexPlan":
        """Rebuild a plan; `verify` checks its choice.

        Raises
        ------
        ArtifactError : naming the field or column, what was found and what is needed.
        """
        head = Field(artifact.head, source, ArtifactError)
        head.allow("configurations", "profile_digest", "features", "most_bytes_per_key", "settings")
        configurations = head.at("configurations").items()
        columns = artifact.numbers("candidates", CANDIDATES, source)
        rows = list(zip(*(columns[name].tolist() for name in CANDIDATES), strict=True))
        if not 1 <= len(rows) <= _MOST_CANDIDATES or len(configurations) != len(rows):
            raise ArtifactError(
                f"{source}: field 'configurations' has {len(configurations)}, table 'candidates' "
                f"{len(rows)} rows, needs as many, 1 to {_MOST_CANDIDATES}"
            )
        spreads = _spreads(artifact, source, len(rows))
        cap = head.at("most_bytes_per_key")
        return cls(
            candidates=tuple(
                replace(
                    _candidate(Configuration.from_field(configuration), row, source, place),
                    trial_spread=spreads[place],
                )
                for place, (configuration, row) in enumerate(zip(configurations, rows, strict=True))
            ),
            encoding=TraceEncoding.from_artifact(artifact, source),
            profile_digest=head.at("profile_digest").text(),
            most_bytes_per_key=None if cap.found is None else cap.read(fields.number),
            settings=head.at("settings").read(fields.table),
            provenance=artifact.provenance,
        )


def within(candidate: ConfigurationCandidate, most_bytes_per_key: float | None) -> bool:
    """Return whether a candidate takes no more memory than the cap; None: no cap."""
    return most_bytes_per_key is None or candidate.bytes_per_key <= most_bytes_per_key


def rank(
    candidate: ConfigurationCandidate, most_bytes_per_key: float | None
) -> tuple[bool, bool, float]:
    """Return the key by which candidates are sorted, the best first.

    Within the cap, then those that were tried, then the fastest.
    """
    return not within(candidate, most_bytes_per_key), not candidate.trials, -candidate.per_s


def _spreads(artifact: Artifact, source: str, count: int) -> list[float | None]:
    """Return the column of spreads, None where it has none (-1) or is absent."""
    if SPREAD not in artifact.tables["candidates"]:
        return [None] * count
    spreads = artifact.numbers("candidates", {SPREAD: np.float64}, source)[SPREAD].tolist()
    for place, spread in enumerate(spreads):
        if not (spread == -1 or 0 <= spread < float("inf")):
            raise ArtifactError(
                f"{source}: column 'candidates.{SPREAD}' has {spread} in row {place}, needs 0 or "
                "more, or -1 for none"
            )
    return [None if spread == -1 else spread for spread in spreads]


def _row(candidate: ConfigurationCandidate) -> tuple[float, ...]:
    return (
        candidate.predicted_per_s,
        candidate.predicted_bytes_per_key,
        candidate.read_ns,
        candidate.write_ns,
        candidate.trials,
        candidate.trial_per_s,
        candidate.trial_bytes_per_key,
        *candidate.leaves,
    )


def _candidate(
    configuration: Configuration, row: tuple[Any, ...], source: str, place: int
) -> ConfigurationCandidate:
    figures = dict(zip(CANDIDATES, row, strict=True))
    for name, value in figures.items():
        if not 0 <= value < float("inf"):
            raise ArtifactError(
                f"{source}: column 'candidates.{name}' has {value} in row {place}, needs 0 or more"
            )
    leaves = tuple(int(figures.pop(f"{name}_leaves")) for name in LEAVES)
    return ConfigurationCandidate(configuration=configuration, leaves=leaves, **figures)
