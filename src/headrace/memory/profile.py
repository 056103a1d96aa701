"""The memory profile: a training step as a graph, with times and bytes on one device.

In an artifact the names are in the head and the numbers in columns. The same as plain JSON, nested
(docs/memory.md), is read too: graphs of others need no headrace.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

import numpy as np

from headrace import fields
from headrace.artifact import Artifact, Table, columns_of
from headrace.artifact_value import PlainArtifactValue
from headrace.errors import ArtifactError
from headrace.facades import public_value
from headrace.fields import Field
from headrace.memory.graph import Graph
from headrace.memory.graph_json import GRAPH_FIELDS, graph_document, read_graph

MEASURED, ROOFLINE = "measured", "roofline"
SPREAD = "spread"
"""Field of a provenance: the time between the quartiles of operators' runs, as a share of it."""

_MOST_ELEMENTS = 1 << 42
_MOST_BYTES = 1 << 50
_OWN_FIELDS = ("model", "model_digest", "device", "torch", "inputs", "eager")

TABLES: dict[str, dict[str, type]] = {
    "storages": {"nbytes": np.int64},
    "operators": {"again": np.uint8, "implementations": np.int32},
    "implementations": {
        "time_us": np.float64,
        "workspace_bytes": np.int64,
        "reads": np.int32,
        "creates": np.int32,
        "overwrites": np.int32,
        "reorders": np.uint8,
    },
    "uses": {"storage": np.int32},
}
"""Columns of each table. `implementations` of an operator, `reads` and `creates` count rows of the
next table that belong to it, one after the other. `overwrites` is -1 for none."""


@public_value("headrace.memory")
class ModelInput:
    """An input of the model in one step: its name, shape and element type, such as ``float32``."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@public_value("headrace.memory")
class EagerStep:
    """A step of the model as it is, forward and backward pass, measured.

    Attributes
    ----------
    peak_bytes : most that was allocated, with what is resident throughout the step.
    """

    peak_bytes: int
    time_us: float


@public_value("headrace.memory", repr=False)
class MemoryProfile(
    PlainArtifactValue, kind="memory-profile", schema=1, command="headrace memory measure"
):
    """A training step on one kind of device.

    Attributes
    ----------
    graph : operators, storages, implementations with their times and workspaces.
    model, device : names, for people.
    model_digest : of the model's structure and parameters' shapes; a plan for another is refused.
    torch : version that the operators are of.
    inputs : shapes that the graph is for.
    provenance : "kind" is "measured" or "roofline" (a model of the device, not a measurement),
        "source" says where and how; "eager", where its step was not measured, why; others are free.
    eager : eager's own step on the device; None if it was not measured: it does not fit into
        memory, or the device is a model of one.

    Raises
    ------
    ArtifactError : naming the field, what was found and what is needed.
    """

    PLAIN_FIELDS = frozenset({"model", "storages", "operators"})

    graph: Graph
    model: str
    model_digest: str
    device: str
    torch: str
    inputs: tuple[ModelInput, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    eager: EagerStep | None = None

    def __post_init__(self) -> None:
        self._set(self.to_document(), self.provenance, "memory profile")

    @property
    def description(self) -> str:
        """The model, the device, and the size of the graph."""
        return f"{self.model} on {self.device}, {self.graph.description}"

    def _set(self, document: Any, provenance: Any, source: str) -> None:
        """Check the parts, and take them in the types that a file's are read in."""
        for name, value in _profile_parts(document, provenance, source).items():
            object.__setattr__(self, name, value)

    def to_document(self) -> dict[str, Any]:
        """Return the fields as nested JSON, without the provenance."""
        return {**self._own(), **graph_document(self.graph)}

    def _own(self) -> dict[str, Any]:
        eager = self.eager
        return {
            "model": self.model,
            "model_digest": self.model_digest,
            "device": self.device,
            "torch": self.torch,
            "inputs": [[tensor.name, list(tensor.shape), tensor.dtype] for tensor in self.inputs],
            **({} if eager is None else {"eager": asdict(eager)}),
        }

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""
        head, tables = _columns(self.graph)
        return {**self._own(), **head}, tables

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "memory profile") -> "MemoryProfile":
        """Rebuild a profile.

        Raises
        ------
        ArtifactError : naming the field, what was found and what is needed.
        """
        return cls.from_document(_nested(artifact, source), artifact.provenance, source)

    @classmethod
    def from_document(
        cls, document: Mapping[str, Any], provenance: Mapping[str, Any], source: str
    ) -> "MemoryProfile":
        """Rebuild a profile from its fields, nested; see `from_artifact`."""
        profile = object.__new__(cls)  # its parts are checked here, with the source in messages
        profile._set(document, provenance, source)
        return profile


def _profile_parts(document: Any, provenance: Any, source: str) -> dict[str, Any]:
    """Return the checked fields of a profile, by the names of its dataclass."""
    head = Field(document, source, ArtifactError)
    head.allow(*_OWN_FIELDS, *GRAPH_FIELDS)
    origin = Field(provenance, f"{source}: provenance", ArtifactError)
    if origin.at("kind").text() not in (MEASURED, ROOFLINE):
        raise origin.at("kind").wrong(f"'{MEASURED}' or '{ROOFLINE}'")
    origin.at("source").text()
    return {
        "graph": read_graph(head),
        **{name: head.at(name).text() for name in ("model", "model_digest", "device", "torch")},
        "inputs": tuple(_input(row) for row in head.at("inputs", default=[]).items()),
        "provenance": provenance,
        "eager": _eager(head.at("eager", default=None)),
    }


def _eager(measured: Field) -> EagerStep | None:
    if measured.found is None:
        return None
    measured.allow("peak_bytes", "time_us")
    time = measured.at("time_us")
    time_us = time.read(fields.number)
    if not 0 < time_us < float("inf"):
        raise time.wrong("more than 0 microseconds")
    return EagerStep(peak_bytes=measured.at("peak_bytes").integer(0, _MOST_BYTES), time_us=time_us)


def _input(row: Field) -> ModelInput:
    return ModelInput(
        name=row.at(0).text(),
        shape=tuple(length.integer(0, _MOST_ELEMENTS) for length in row.at(1).items()),
        dtype=row.at(2).text(),
    )


def _columns(graph: Graph) -> tuple[dict[str, Any], dict[str, Table]]:
    """Return a graph as the head's fields and tables."""
    ways = [variant for operator in graph.operators for variant in operator.implementations]
    rows: dict[str, Sequence[Sequence[float]]] = {
        "storages": [(storage.nbytes,) for storage in graph.storages],
        "operators": [
            (operator.again, len(operator.implementations)) for operator in graph.operators
        ],
        "implementations": [
            (
                variant.time_us,
                variant.workspace_bytes,
                len(variant.reads),
                len(variant.creates),
                -1 if variant.overwrites is None else variant.overwrites,
                variant.reorders,
            )
            for variant in ways
        ],
        "uses": [(use,) for variant in ways for use in (*variant.reads, *variant.creates)],
    }
    head = {
        "storages": [storage.name for storage in graph.storages],
        "operators": [[operator.name, operator.module] for operator in graph.operators],
        "implementations": [variant.name for variant in ways],
        "forward_count": graph.forward_count,
        "outputs": sorted(graph.outputs),
        "results": sorted(graph.results),
        "resident": dict(graph.resident),
    }
    return head, {name: columns_of(rows[name], types) for name, types in TABLES.items()}


def _nested(artifact: Artifact, source: str) -> dict[str, Any]:
    """Return the document of an artifact; its values are checked by `_profile_parts`."""
    head = Field(artifact.head, source, ArtifactError)
    tables = {name: _table(artifact, name, source) for name in TABLES}
    names = {name: head.at(name).items() for name in ("storages", "operators", "implementations")}
    for name, rows in names.items():
        length = len(next(iter(tables[name].values())))
        if len(rows) != length:
            raise head.at(name).fail(f"has {len(rows)} names, its table {length} rows")
    uses = _Rows([use for (use,) in _rows(tables["uses"])], "uses", source)
    ways = _Rows(
        [
            _way(name.found, row, uses)
            for name, row in zip(
                names["implementations"], _rows(tables["implementations"]), strict=True
            )
        ],
        "implementations",
        source,
    )
    operators = [
        {
            "name": name.at(0).found,
            "module": name.at(1).found,
            "again": bool(again),
            "implementations": ways.take(count),
        }
        for name, (again, count) in zip(names["operators"], _rows(tables["operators"]), strict=True)
    ]
    uses.end()
    ways.end()
    sizes = zip(names["storages"], tables["storages"]["nbytes"], strict=True)
    others = {name: value for name, value in artifact.head.items() if name != "implementations"}
    return {
        **others,
        "storages": [{"name": name.found, "nbytes": nbytes} for name, nbytes in sizes],
        "operators": operators,
    }


class _Rows:
    """Rows of a table that are taken one after the other."""

    def __init__(self, rows: list[Any], name: str, source: str) -> None:
        self._rows, self._name, self._source, self._next = rows, name, source, 0

    def take(self, count: int) -> list[Any]:
        """Return the next `count` rows; raises ArtifactError where there are fewer."""
        end = self._next + count
        if not self._next <= end <= len(self._rows):
            raise ArtifactError(
                f"{self._source}: table '{self._name}' has {len(self._rows)} rows, its rows "
                f"{self._next} to {end - 1} are named"
            )
        rows, self._next = self._rows[self._next : end], end
        return rows

    def end(self) -> None:
        """Raise ArtifactError if rows are left."""
        if self._next < len(self._rows):
            raise ArtifactError(
                f"{self._source}: table '{self._name}' has {len(self._rows)} rows, only "
                f"{self._next} belong to others"
            )


def _table(artifact: Artifact, name: str, source: str) -> dict[str, list[Any]]:
    columns = artifact.numbers(name, TABLES[name], source)
    for column in columns:
        if column not in TABLES[name]:
            raise ArtifactError(f"{source}: column '{name}.{column}' is unknown")
    return {column: columns[column].tolist() for column in TABLES[name]}


def _rows(table: dict[str, list[Any]]) -> Iterator[tuple[Any, ...]]:
    return zip(*table.values(), strict=True)


def _way(name: Any, row: tuple[Any, ...], uses: _Rows) -> dict[str, Any]:
    time_us, workspace, reads, creates, overwrites, reorders = row
    return {
        "name": name,
        "time_us": time_us,
        "workspace_bytes": workspace,
        "reads": uses.take(reads),
        "creates": uses.take(creates),
        "overwrites": None if overwrites == -1 else overwrites,
        "reorders": bool(reorders),
    }
