"""The index profile: a trace's encoding, and the sample that candidates are run on."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue, stored_value
from headrace.errors import ArtifactError
from headrace.fields import Field
from headrace.index.errors import TraceError
from headrace.index.trace import Trace

SIDE = 256
"""Pixels of either axis of the image."""

ENCODING_TABLES: dict[str, tuple[int | None, dict[str, type]]] = {
    "image": (None, {"time": np.uint8, "key": np.uint8, "reads": np.uint32, "writes": np.uint32}),
    "loaded_image": (SIDE, {"count": np.uint32}),
    "fits": (
        7,
        {
            "scale": np.int32,
            **{f"residual{percent}": np.float64 for percent in (10, 50, 90, 100)},
            "even10": np.float64,
            "even50": np.float64,
        },
    ),
    "gaps": (64, {"share": np.float64}),
    "changes": (16, {"share": np.float64}),
    "hot": (5, {"keys": np.int32, "reads": np.float64, "writes": np.float64}),
    "ranks": (32, {"reads": np.float64, "writes": np.float64}),
}
"""Rows (None: any number) and columns of the tables of an encoding. The image has its pixels that
are not empty."""

SAMPLE_TABLES: dict[str, dict[str, type]] = {
    "loaded": {"key": np.uint64},
    "operations": {"operation": np.uint8, "key": np.uint64},
}

FEATURES = (
    "find_share",
    "insert_share",
    "erase_share",
    "scan_share",
    "missing_share",
    "assign_share",
    "append_share",
    "near_share",
    "log2_loaded",
    "log2_operations",
    "log2_final",
    "low_tail_log2",
    "high_tail_log2",
)
"""Names of the simple features, in their order."""


@stored_value("headrace.index", ArtifactError, eq=False)
class TraceEncoding:
    """A trace in numbers, for the throughput model and for people.

    Attributes
    ----------
    image : counts of operations (uint32) by time, key, and reads (0) or writes (1).
    loaded_image : counts of loaded keys (uint32) by key.
    features : value of each of `FEATURES`, see `headrace.index.measure.mix`.
    tables : "fits", "gaps", "changes", "hot" and "ranks", as in `ENCODING_TABLES`.
    """

    image: np.ndarray
    loaded_image: np.ndarray
    features: Mapping[str, float]
    tables: Mapping[str, Table]

    def __repr__(self) -> str:
        return f"<TraceEncoding of {int(self.image.sum()):,} operations>"

    def to_tables(self) -> dict[str, Table]:
        """Return the image and the tables as an artifact's tables, in the types of these."""
        time, key = np.nonzero(self.image.any(axis=2))
        image = {
            "time": time.astype(np.uint8),
            "key": key.astype(np.uint8),
            "reads": self.image[time, key, 0],
            "writes": self.image[time, key, 1],
        }
        tables = {"image": image, "loaded_image": {"count": self.loaded_image}, **self.tables}
        return {
            name: {
                column: np.asarray(values, ENCODING_TABLES[name][1][column])
                for column, values in table.items()
            }
            for name, table in tables.items()
        }

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str) -> "TraceEncoding":
        """Rebuild an encoding from the head's "features" and the tables.

        Raises
        ------
        ArtifactError : naming the field or column, what was found and what is needed.
        """
        head = Field(artifact.head, source, ArtifactError).at("features")
        head.allow(*FEATURES)
        features = {name: _finite(head.at(name)) for name in FEATURES}
        tables = {
            name: _table(artifact, name, rows, columns, source)
            for name, (rows, columns) in ENCODING_TABLES.items()
        }
        pixels = tables.pop("image")
        image = np.zeros((SIDE, SIDE, 2), dtype=np.uint32)
        image[pixels["time"], pixels["key"]] = np.stack([pixels["reads"], pixels["writes"]], axis=1)
        loaded = tables.pop("loaded_image")["count"]
        return cls(image=image, loaded_image=loaded, features=features, tables=tables)


@stored_value("headrace.index", ArtifactError, eq=False, repr=False)
class IndexProfile(ArtifactValue, kind="index-profile", schema=1, command="headrace index measure"):
    """A workload of an index: its encoding, and a sample of its trace.

    Attributes
    ----------
    encoding : of the trace.
    sample : the part of it that candidates are run on.
    loaded, operations : how many the whole trace has.
    kind : type of its keys, such as ``uint64``.
    provenance : sources; not part of the digest.
    """

    encoding: TraceEncoding
    sample: Trace
    loaded: int
    operations: int
    kind: str
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """Numbers of operations and keys, and the size of the sample."""
        return (
            f"{self.operations:,} operations on {self.loaded:,} keys of {self.kind}, "
            f"{len(self.sample.keys):,} sampled"
        )

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""
        head = {
            "keys": self.kind,
            "loaded": self.loaded,
            "operations": self.operations,
            "sample_keys": self.sample.kind,
            "features": dict(self.encoding.features),
        }
        tables = {
            **self.encoding.to_tables(),
            "loaded": {"key": self.sample.loaded},
            "operations": {"operation": self.sample.operations, "key": self.sample.keys},
        }
        return head, tables

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "index profile") -> "IndexProfile":
        """Rebuild a profile.

        Raises
        ------
        ArtifactError : naming the field or column, what was found and what is needed.
        """
        head = Field(artifact.head, source, ArtifactError)
        head.allow("keys", "loaded", "operations", "sample_keys", "features")
        parts = {
            name: _table(artifact, name, None, columns, source)
            for name, columns in SAMPLE_TABLES.items()
        }
        try:
            sample = Trace(
                loaded=parts["loaded"]["key"],
                operations=parts["operations"]["operation"],
                keys=parts["operations"]["key"],
                kind=head.at("sample_keys").text(),
            )
        except TraceError as error:
            raise ArtifactError(f"{source}: {error}") from error
        return cls(
            encoding=TraceEncoding.from_artifact(artifact, source),
            sample=sample,
            loaded=head.at("loaded").integer(0, 1 << 48),
            operations=head.at("operations").integer(0, 1 << 48),
            kind=head.at("keys").text(),
            provenance=artifact.provenance,
        )


def _table(
    artifact: Artifact, name: str, rows: int | None, columns: Mapping[str, type], source: str
) -> Table:
    """Return a table with exactly these columns, of these types and, if given, so many rows."""
    table = artifact.numbers(name, columns, source)
    for column, values in table.items():
        if column not in columns:
            raise ArtifactError(f"{source}: column '{name}.{column}' is unknown")
        if values.dtype != columns[column]:
            raise ArtifactError(
                f"{source}: column '{name}.{column}' has type {values.dtype}, needs "
                f"{np.dtype(columns[column])}"
            )
        if rows is not None and len(values) != rows:
            raise ArtifactError(
                f"{source}: column '{name}.{column}' has {len(values)} rows, needs {rows}"
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ArtifactError(
                f"{source}: column '{name}.{column}' has values that are not finite"
            )
    return table


def _finite(feature: Field) -> float:
    number = feature.read(fields.number)
    if not np.isfinite(number):
        raise feature.wrong("a finite number")
    return number
