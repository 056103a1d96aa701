"""Recorded probes of one box: the NIC's loopbacks, and GPUs that copy alone and two at a time.

As in the profiler of TACCL (dissertation, 5.3). A table of such probes has one row for each run:

========== ===== ======= ===== ===========================================================
probe      gpu   other   cpu   value
========== ===== ======= ===== ===========================================================
loopback                 c     us of a small RDMA loopback through memory of CPU c
alone      g             c     GB/s of g copying to CPU c, all else idle
pair       g     h       c     GB/s of g copying to CPU c while h does the same
from_cpu   g             c     GB/s of g copying from CPU c, all else idle
beside_nic g             c     the same while the NIC does a loopback in memory of CPU c
========== ===== ======= ===== ===========================================================

Repeated runs are repeated rows; missing probes are left out (or have no value). ``from_cpu`` may
be missing: ``alone`` replaces it. A box with several NICs is one table for each NIC.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import headrace.artifact as artifact_io
from headrace import fields
from headrace.artifact import Artifact, Table, columns_of
from headrace.artifact_value import ArtifactValue
from headrace.errors import ArtifactError
from headrace.facades import offered_by, public_value
from headrace.fields import Field
from headrace.files import decoded, parse_json, read_bytes

_T = TypeVar("_T")
_COLUMNS: Mapping[str, type] = {
    "probe": np.uint8,
    "gpu": np.int32,
    "other": np.int32,
    "cpu": np.int32,
    "value": np.float64,
}
MAX_DEVICES = 64
_MAX_BYTES = 256 << 20


@offered_by("headrace.collectives")
class ProbeKind(IntEnum):
    """Kind of a probe; names in files are these in lower case."""

    LOOPBACK = 0
    ALONE = 1
    PAIR = 2
    FROM_CPU = 3
    BESIDE_NIC = 4


ProbeRow = tuple[ProbeKind, int, int, int, float]
"""(probe, gpu or -1, other or -1, cpu, value)."""


@public_value("headrace.collectives", eq=False, repr=False)
class HardwareProbes(ArtifactValue, kind="hardware-probes", schema=1):
    """The probes of one box and one of its NICs; columns of equal length.

    Attributes
    ----------
    cpus, gpus : number of each in the box; they are numbered from 0.
    probe : uint8, of `ProbeKind`.
    gpu, other, cpu : int32; -1 where the probe has none.
    value : float64, us for loopbacks, else GB/s (10^9 bytes).
    provenance : where it was recorded; not part of the digest.

    Raises
    ------
    ArtifactError : naming the row, what was found and what is allowed.
    """

    cpus: int
    gpus: int
    probe: np.ndarray
    gpu: np.ndarray
    other: np.ndarray
    cpu: np.ndarray
    value: np.ndarray
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, count in (("cpus", self.cpus), ("gpus", self.gpus)):
            if not 1 <= count <= MAX_DEVICES:
                raise ArtifactError(f"field '{name}' is {count}, needs 1 to {MAX_DEVICES}")
        rows = [len(getattr(self, name)) for name in _COLUMNS]
        if len(set(rows)) != 1:
            raise ArtifactError(
                f"columns {', '.join(_COLUMNS)} have {rows} rows, need as many each"
            )
        _check_ids("probe", self.probe, len(ProbeKind))
        paired, lonely = self.probe == ProbeKind.PAIR, self.probe == ProbeKind.LOOPBACK
        _check_ids("cpu", self.cpu, self.cpus)
        _check_ids("gpu", np.where(lonely, 0, self.gpu), self.gpus)
        _check_ids("other", np.where(paired, self.other, 0), self.gpus)
        for row in np.flatnonzero(paired & (self.gpu == self.other)):
            raise ArtifactError(
                f"rows[{row}]: field 'other' is {self.other[row]}, the same as 'gpu': a pair needs "
                "two"
            )
        for row in np.flatnonzero(~(np.isfinite(self.value) & (self.value > 0))):
            raise ArtifactError(
                f"rows[{row}]: field 'value' is {self.value[row]}, needs a finite number above 0"
            )

    @property
    def description(self) -> str:
        """Numbers of CPUs, GPUs and probes."""
        return f"{self.cpus} CPUs, {self.gpus} GPUs, {len(self.probe)} probes"

    @classmethod
    def of(
        cls,
        cpus: int,
        gpus: int,
        rows: Iterable[ProbeRow],
        provenance: Mapping[str, Any] | None = None,
    ) -> "HardwareProbes":
        """Make a table of rows."""
        arrays: dict[str, Any] = columns_of(rows, _COLUMNS)
        return cls(cpus=cpus, gpus=gpus, provenance=provenance or {}, **arrays)

    def logs(self, probe: ProbeKind) -> dict[tuple[int, int, int], np.ndarray]:
        """Return the logarithms of one probe's values by (gpu, other, cpu)."""
        mine = np.flatnonzero(self.probe == probe)
        gpus = np.where(probe == ProbeKind.LOOPBACK, -1, self.gpu[mine])
        others = np.where(probe == ProbeKind.PAIR, self.other[mine], -1)
        logs: dict[tuple[int, int, int], list[float]] = {}
        keys = zip(gpus.tolist(), others.tolist(), self.cpu[mine].tolist(), strict=True)
        for key, value in zip(keys, np.log(self.value[mine]).tolist(), strict=True):
            logs.setdefault(key, []).append(value)
        return {key: np.array(values) for key, values in logs.items()}

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""
        rows = {name: getattr(self, name) for name in _COLUMNS}
        return {"cpus": self.cpus, "gpus": self.gpus}, {"rows": rows}

    @classmethod
    def load(cls, path: str | Path) -> "HardwareProbes":
        """Read an artifact, plain JSON or CSV, told apart by the first line.

        JSON: ``{"cpus": 2, "gpus": 8, "rows": [["pair", 0, 1, 0, 5.9], ...]}`` with null for
        absent values. CSV: columns probe, gpu, other, cpu, value, named in the first line.

        Raises
        ------
        ArtifactError : naming file, row and field, what was found and what is allowed.
        """
        return cls.from_bytes(read_bytes(path, ArtifactError, _MAX_BYTES), str(path))

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str) -> "HardwareProbes":
        """Return the probes that an artifact holds; raises ArtifactError naming a wrong column."""
        rows = artifact.numbers("rows", _COLUMNS, source)
        columns: dict[str, Any] = {name: rows[name] for name in _COLUMNS}
        columns |= _counts(Field(artifact.head, source, ArtifactError))
        return _named(source, lambda: cls(provenance=artifact.provenance, **columns))

    @classmethod
    def from_bytes(cls, content: bytes, source: str = "hardware probes") -> "HardwareProbes":
        """Parse the bytes of a file; see `load`."""
        if b'"headrace-artifact"' in content.partition(b"\n")[0]:
            artifact = artifact_io.from_bytes(
                content, source=source, kind=cls.KIND, schema=cls.SCHEMA
            )
            return cls.from_artifact(artifact, source)
        text = decoded(content, source, ArtifactError)
        is_json = text.lstrip().startswith("{")
        found = parse_json(text, source, ArtifactError) if is_json else {"rows": _csv(text, source)}
        document = Field(found, source, ArtifactError)
        rows = list(_rows(document))
        counts = _counts(document) if is_json else _largest(rows)
        return _named(source, lambda: cls.of(counts["cpus"], counts["gpus"], rows))


def _named(source: str, make: Callable[[], _T]) -> _T:
    """Return the value of `make`; its errors begin with the source."""
    try:
        return make()
    except ArtifactError as error:
        raise ArtifactError(f"{source}: {error}") from error


def _check_ids(name: str, ids: np.ndarray, count: int) -> None:
    if ids.dtype.kind not in "iu":
        raise ArtifactError(f"column '{name}' has type {ids.dtype}, needs integers")
    for row in np.flatnonzero((ids < 0) | (ids >= count)):
        raise ArtifactError(f"rows[{row}]: field '{name}' is {ids[row]}, needs 0 to {count - 1}")


def _counts(head: Field) -> dict[str, int]:
    return {name: head.at(name).read(fields.integer) for name in ("cpus", "gpus")}


def _largest(rows: Sequence[ProbeRow]) -> dict[str, int]:
    """Return counts by the largest numbers: a CSV has no head."""
    cpus = max((row[3] for row in rows), default=0) + 1
    gpus = max((max(row[1], row[2]) for row in rows), default=0) + 1
    return {"cpus": cpus, "gpus": max(gpus, 1)}


def _csv(text: str, source: str) -> list[list[Any]]:
    try:
        lines = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error as error:
        raise ArtifactError(f"{source}: is no CSV: {error}") from error
    if not lines or lines[0] != list(_COLUMNS):
        first = ",".join(lines[0])[:80] if lines else ""
        raise ArtifactError(f"{source}: the first line is {first!r}, needs {','.join(_COLUMNS)!r}")
    return [[_cell(cell) for cell in line] for line in lines[1:]]


def _cell(text: str) -> Any:
    if not text:
        return None
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _rows(document: Field) -> Iterator[ProbeRow]:
    """Yield the rows that have a value."""
    for row_field in document.at("rows").items():
        cells = row_field.read(fields.items)
        if len(cells) != len(_COLUMNS):
            raise row_field.fail(f"has {len(cells)} cells, needs {', '.join(_COLUMNS)}")
        named = dict(zip(_COLUMNS, cells, strict=True))
        row = row_field.holding(named)
        kind = row.at("probe").read(str).upper()
        if kind not in ProbeKind.__members__:
            allowed = ", ".join(probe.name.lower() for probe in ProbeKind)
            raise row.at("probe").wrong(f"one of {allowed}")
        if named["value"] is None:
            continue
        gpu, peer, cpu = (
            -1 if named[name] is None else row.at(name).integer(-1, MAX_DEVICES - 1)
            for name in ("gpu", "other", "cpu")
        )
        yield ProbeKind[kind], gpu, peer, cpu, row.at("value").read(fields.number)
