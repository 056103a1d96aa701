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
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

import headrace.artifact as artifact_io
from headrace import fields
from headrace.artifact import Artifact
from headrace.errors import ArtifactError

KIND = "hardware-probes"
_SCHEMA = 1
_COLUMNS = ("probe", "gpu", "other", "cpu", "value")
MAX_DEVICES = 64
_MAX_BYTES = 256 << 20


class ProbeKind(IntEnum):
    """Kind of a probe; names in files are these in lower case."""

    LOOPBACK = 0
    ALONE = 1
    PAIR = 2
    FROM_CPU = 3
    BESIDE_NIC = 4


ProbeRow = tuple[ProbeKind, int, int, int, float]
"""(probe, gpu or -1, other or -1, cpu, value)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HardwareProbes:
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
        columns = (self.probe, self.gpu, self.other, self.cpu, self.value)
        if len({len(column) for column in columns}) != 1:
            raise ArtifactError(
                f"columns {', '.join(_COLUMNS)} have {[len(c) for c in columns]} rows, need as "
                "many each"
            )
        _check_ids("probe", self.probe, 0, len(ProbeKind))
        paired, lonely = self.probe == ProbeKind.PAIR, self.probe == ProbeKind.LOOPBACK
        _check_ids("cpu", self.cpu, 0, self.cpus)
        _check_ids("gpu", np.where(lonely, 0, self.gpu), 0, self.gpus)
        _check_ids("other", np.where(paired, self.other, 0), 0, self.gpus)
        for row in np.flatnonzero(paired & (self.gpu == self.other)):
            raise ArtifactError(
                f"rows[{row}]: field 'other' is {self.other[row]}, the same as 'gpu': a pair needs "
                "two"
            )
        for row in np.flatnonzero(~(np.isfinite(self.value) & (self.value > 0))):
            raise ArtifactError(
                f"rows[{row}]: field 'value' is {self.value[row]}, needs a finite number above 0"
            )

    @classmethod
    def of(
        cls,
        cpus: int,
        gpus: int,
        rows: Iterable[ProbeRow],
        provenance: Mapping[str, Any] | None = None,
    ) -> "HardwareProbes":
        """Make a table of rows."""
        probe, gpu, other, cpu, value = [list(c) for c in zip(*rows, strict=True)] or [[]] * 5
        return cls(
            cpus=cpus,
            gpus=gpus,
            probe=np.array(probe, dtype=np.uint8),
            gpu=np.array(gpu, dtype=np.int32),
            other=np.array(other, dtype=np.int32),
            cpu=np.array(cpu, dtype=np.int32),
            value=np.array(value, dtype=np.float64),
            provenance=provenance or {},
        )

    def logs(self, probe: ProbeKind) -> dict[tuple[int, int, int], np.ndarray]:
        """Return the logarithms of one probe's values by (gpu, other, cpu)."""
        mine = np.flatnonzero(self.probe == probe)
        gpus = np.where(probe == ProbeKind.LOOPBACK, -1, self.gpu[mine])
        others = np.where(probe == ProbeKind.PAIR, self.other[mine], -1)
        found: dict[tuple[int, int, int], list[float]] = {}
        keys = zip(gpus.tolist(), others.tolist(), self.cpu[mine].tolist(), strict=True)
        for key, value in zip(keys, np.log(self.value[mine]).tolist(), strict=True):
            found.setdefault(key, []).append(value)
        return {key: np.array(values) for key, values in found.items()}

    def to_artifact(self) -> Artifact:
        """Return the table as an artifact of kind "hardware-probes"."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        head = {"cpus": self.cpus, "gpus": self.gpus}
        return Artifact(
            kind=KIND,
            schema=_SCHEMA,
            head=head,
            tables={"rows": columns},
            provenance=self.provenance,
        )

    def save(self, path: str | Path) -> None:
        """Write the table to `path` as an artifact."""
        self.to_artifact().save(path)

    @classmethod
    def load(cls, path: str | Path) -> "HardwareProbes":
        """Read an artifact, plain JSON or CSV, told apart by the first line.

        JSON: ``{"cpus": 2, "gpus": 8, "rows": [["pair", 0, 1, 0, 5.9], ...]}`` with null for
        absent values. CSV: columns probe, gpu, other, cpu, value, named in the first line.

        Raises
        ------
        ArtifactError : naming file, row and field, what was found and what is allowed.
        """
        try:
            if Path(path).stat().st_size > _MAX_BYTES:
                raise ArtifactError(f"{path}: is larger than {_MAX_BYTES >> 20} MiB")
            raw = Path(path).read_bytes()
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            return cls.from_bytes(raw)
        except ArtifactError as error:
            raise ArtifactError(f"{path}: {error}") from error

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str) -> "HardwareProbes":
        """Return the probes that an artifact holds; raises ArtifactError naming a wrong column."""
        try:
            return _recorded(artifact)
        except ArtifactError as error:
            raise ArtifactError(f"{source}: {error}") from error

    @classmethod
    def from_bytes(cls, raw: bytes) -> "HardwareProbes":
        """Parse the bytes of a file; see `load`."""
        if b'"headrace-artifact"' in raw.partition(b"\n")[0]:
            return _recorded(artifact_io.from_bytes(raw, kind=KIND, schema=_SCHEMA))
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ArtifactError(f"is not text: {error}") from error
        return _from_json(text) if text.lstrip().startswith("{") else _from_csv(text)


def _check_ids(name: str, found: np.ndarray, low: int, high: int) -> None:
    for row in np.flatnonzero((found < low) | (found >= high)):
        raise ArtifactError(
            f"rows[{row}]: field '{name}' is {found[row]}, needs {low} to {high - 1}"
        )


def _recorded(artifact: Artifact) -> HardwareProbes:
    columns = artifact.tables.get("rows", {})
    for name in _COLUMNS:
        if name not in columns or columns[name].dtype.kind not in "iuf":
            raise ArtifactError(f"column 'rows.{name}' is missing or no numbers")
    counts = _counts(artifact.head)
    probe, gpu, other, cpu, value = (columns[name] for name in _COLUMNS)
    return HardwareProbes(
        cpus=counts["cpus"],
        gpus=counts["gpus"],
        probe=probe,
        gpu=gpu,
        other=other,
        cpu=cpu,
        value=value,
        provenance=artifact.provenance,
    )


def _counts(head: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in ("cpus", "gpus"):
        try:
            found[name] = fields.integer(head[name])
        except KeyError as error:
            raise ArtifactError(f"field '{name}' is missing, needs how many there are") from error
        except TypeError as error:
            raise ArtifactError(f"field '{name}': {error}") from error
    return found


def _from_json(text: str) -> HardwareProbes:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"is not JSON: {error}") from error
    counts = _counts(head)
    try:
        lists = [fields.items(row) for row in fields.items(head.get("rows"))]
    except TypeError as error:
        raise ArtifactError(
            f"field 'rows' needs lists of {', '.join(_COLUMNS)}: {error}"
        ) from error
    rows = [row for i, cells in enumerate(lists) if (row := _row(i, cells)) is not None]
    return HardwareProbes.of(counts["cpus"], counts["gpus"], rows)


def _from_csv(text: str) -> HardwareProbes:
    try:
        lines = [line for line in csv.reader(io.StringIO(text)) if line]
    except csv.Error as error:
        raise ArtifactError(f"is no CSV: {error}") from error
    if not lines or tuple(cell.strip() for cell in lines[0]) != _COLUMNS:
        first = ",".join(lines[0])[:80] if lines else ""
        raise ArtifactError(f"the first line is {first!r}, needs {','.join(_COLUMNS)!r}")
    rows = [
        row
        for i, line in enumerate(lines[1:])
        if (row := _row(i, [_cell(cell.strip()) for cell in line])) is not None
    ]
    # a CSV has no head: counts follow from the largest numbers
    cpus = max((row[3] for row in rows), default=0) + 1
    gpus = max((max(row[1], row[2]) for row in rows), default=0) + 1
    return HardwareProbes.of(cpus, max(gpus, 1), rows)


def _cell(text: str) -> Any:
    if not text:
        return None
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _row(index: int, cells: list[Any]) -> ProbeRow | None:
    """Read one row; None if it has no value."""
    where = f"rows[{index}]"
    if len(cells) != len(_COLUMNS):
        raise ArtifactError(f"{where} has {len(cells)} cells, needs {', '.join(_COLUMNS)}")
    name, gpu, other, cpu, value = cells
    if not isinstance(name, str) or name.upper() not in ProbeKind.__members__:
        allowed = ", ".join(probe.name.lower() for probe in ProbeKind)
        raise ArtifactError(f"{where}: field 'probe' is {name!r}, needs one of {allowed}")
    if value is None:
        return None
    ids: list[int] = []
    for column, found in (("gpu", gpu), ("other", other), ("cpu", cpu)):
        try:
            ids.append(-1 if found is None else _small(found))
        except TypeError as error:
            raise ArtifactError(f"{where}: field '{column}': {error}") from error
    try:
        number = fields.number(value)
    except TypeError as error:
        raise ArtifactError(f"{where}: field 'value': {error}") from error
    if not math.isfinite(number):
        raise ArtifactError(f"{where}: field 'value' is {number}, needs a finite number above 0")
    return ProbeKind[name.upper()], ids[0], ids[1], ids[2], number


def _small(found: Any) -> int:
    number = fields.integer(found)
    if not -1 <= number < MAX_DEVICES:
        raise TypeError(f"{number} is not 0 to {MAX_DEVICES - 1}")
    return number
