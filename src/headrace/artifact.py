"""Artifacts: the frozen values passed between stages, in reproducible files.

An artifact is a *head* (JSON) and named *tables* of NumPy columns. In a file the first line is
canonical JSON (the envelope: kind, schema version, digest, provenance, head, table sizes); the
tables follow as Arrow IPC streams. The digest covers the logical content (head and column
values), so it does not depend on the Arrow version that wrote the file.
"""

import errno
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace import fields
from headrace.errors import ArtifactError
from headrace.files import decoded, load_json, parse_json, read_bytes, refuse_pipe, write_whole

__all__ = [
    "Artifact",
    "Table",
    "canonical_json",
    "check_target",
    "columns_of",
    "from_bytes",
    "load",
    "plain_document",
    "write_file",
]

Table = Mapping[str, np.ndarray]

_MAGIC = "headrace-artifact"
_CONTAINER_VERSION = 1
_ENVELOPE_BYTES = 4096
"""Beginning of an artifact, which has its format; plain JSON does not."""


def canonical_json(value: Any) -> str:
    """Return `value` as JSON with sorted keys and no spaces: equal values, equal text."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_python_scalar
    )


def _python_scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} {fields.shown(value)} has no form in JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One head with its tables.

    Attributes
    ----------
    kind : type of artifact ("topology", "profile", "plan", "plan-book", ...).
    schema : version of the head's layout for that kind.
    head : JSON-serializable mapping.
    tables : table name -> column name -> one-dimensional array.
    provenance : sources and settings that it was made from; not part of the digest.
    """

    kind: str
    schema: int
    head: Mapping[str, Any]
    tables: Mapping[str, Table] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        tables = ", ".join(self.tables) or "none"
        return f"<Artifact: {self.kind} (schema {self.schema}), tables {tables}>"

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over kind, schema, head and every column's name, type and values."""
        sha = hashlib.sha256()
        sha.update(canonical_json([self.kind, self.schema, self.head]).encode())
        for table in sorted(self.tables):
            for column in sorted(self.tables[table]):
                values = _little_endian(self.tables[table][column])
                sha.update(canonical_json([table, column, values.dtype.str, len(values)]).encode())
                sha.update(values.tobytes())
        return sha.hexdigest()

    def numbers(self, table: str, needed: Iterable[str], source: str) -> Table:
        """Return a table that has at least these columns, all of numbers.

        Raises
        ------
        ArtifactError : naming the source and the column.
        """
        columns = self.tables.get(table, {})
        for name in needed:
            if name not in columns:
                raise ArtifactError(f"{source}: column '{table}.{name}' is missing")
        for name, column in columns.items():
            if column.dtype.kind not in "iuf":
                raise ArtifactError(
                    f"{source}: column '{table}.{name}' has type {column.dtype}, needs numbers"
                )
        return columns

    def require_schema(self, schema: int, source: str) -> None:
        """Raise ArtifactError, naming the source, for another version of the layout."""
        _expect_version(source, "schema", self.schema, schema, "")

    def save(self, path: str | Path) -> None:
        """Write to `path` atomically: a kill leaves the old file or the new one, never a part.

        Raises
        ------
        ArtifactError : if the file cannot be written, with the reason.
        """
        path, content = Path(path), self.to_bytes()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(path, error) from error
        write_file(path, content)

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        blobs = {name: _table_to_ipc(table) for name, table in sorted(self.tables.items())}
        envelope = {
            "format": _MAGIC,
            "version": _CONTAINER_VERSION,
            "kind": self.kind,
            "schema": self.schema,
            "digest": self.digest,
            "head": self.head,
            "provenance": self.provenance,
            "tables": [[name, len(blob)] for name, blob in blobs.items()],
        }
        return canonical_json(envelope).encode() + b"\n" + b"".join(blobs.values())


def columns_of(
    rows: Iterable[Sequence[float]], types: Mapping[str, type | np.dtype]
) -> dict[str, np.ndarray]:
    """Return rows as a table with columns of these types, in their order."""
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    return {
        name: np.array(column, dtype=type_)
        for (name, type_), column in zip(types.items(), columns, strict=True)
    }


def write_file(path: str | Path, content: bytes) -> None:
    """Write a file atomically: a kill leaves the old file or the new one, never a part.

    Raises
    ------
    ArtifactError : if the file cannot be written, with the reason.
    """
    path = Path(path)
    try:
        _refuse_what_cannot_be_written(path)
        write_whole(path, content)
    except OSError as error:
        raise _unwritable(path, error) from error


def check_target(path: str | Path) -> None:
    """Raise ArtifactError if `path` cannot be written, as far as that can be checked beforehand.

    For commands that run long before they save: their folder has to exist. Leaves no file.
    """
    path = Path(path)
    folder = path.parent
    try:
        _refuse_what_cannot_be_written(path)
        if path.is_symlink():
            folder = Path(os.path.realpath(path)).parent
        with tempfile.TemporaryFile(dir=folder.absolute()):
            pass
    except FileNotFoundError as error:
        reason = f"there is no folder '{folder}'; make it first"
        if folder.absolute().exists():  # as /proc, which takes no files
            reason = f"no file can be made in '{folder}'; name another folder"
        raise ArtifactError(f"{path}: cannot be written: {reason}") from error
    except OSError as error:
        raise _unwritable(path, error) from error


def load(
    path: str | Path, kind: str | None = None, schema: int | None = None, remedy: str = ""
) -> Artifact:
    """Read an artifact, checking its container, kind, schema and digest.

    An error on the kind ends with `remedy`.

    Raises
    ------
    ArtifactError : naming the file, the field, what was found and what is allowed.
    """
    raw = read_bytes(path, ArtifactError)
    return from_bytes(raw, source=str(path), kind=kind, schema=schema, remedy=remedy)


def plain_document(
    path: str | Path, remedy: str = ""
) -> tuple[dict[str, Any], Mapping[str, Any]] | None:
    """Return the fields and the provenance of a plain JSON file; None if it is an artifact.

    An error on what is neither ends with `remedy`.

    Raises
    ------
    ArtifactError : the file cannot be read, is not JSON, or has no "provenance"; an artifact comes
        through a pipe.
    """
    content = read_bytes(path, ArtifactError)
    if f'"format":"{_MAGIC}"'.encode() in content[:_ENVELOPE_BYTES]:
        refuse_pipe(path, ArtifactError)  # it is read again
        return None
    try:
        text = decoded(content, str(path), ArtifactError)
        document = parse_json(text, str(path), ArtifactError)
    except ArtifactError as error:
        raise ArtifactError(f"{error}{_then(remedy)}") from error
    provenance = (
        fields.Field(document, str(path), ArtifactError).at("provenance").read(fields.table)
    )
    return {name: value for name, value in document.items() if name != "provenance"}, provenance


def from_bytes(
    raw: bytes,
    *,
    source: str = "artifact",
    kind: str | None = None,
    schema: int | None = None,
    remedy: str = "",
) -> Artifact:
    """Parse the bytes of an artifact; see `load`."""
    line, _, body = raw.partition(b"\n")
    try:
        envelope = load_json(line)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{source}: the first line is not JSON ({error}); "
            f"a headrace artifact starts with a JSON envelope{_then(remedy)}"
        ) from error
    if not isinstance(envelope, dict) or envelope.get("format") != _MAGIC:
        raise ArtifactError(
            f"{source}: not a headrace artifact (field 'format' is not '{_MAGIC}'){_then(remedy)}"
        )
    _expect_version(source, "version", envelope.get("version"), _CONTAINER_VERSION, remedy)
    for name, type_ in (("kind", str), ("schema", int), ("digest", str), ("head", dict)):
        if not isinstance(envelope.get(name), type_):
            raise ArtifactError(
                f"{source}: field '{name}' is {fields.shown(envelope.get(name))}, needs "
                f"{type_.__name__}"
            )
    if not isinstance(envelope.get("provenance", {}), dict):
        raise ArtifactError(
            f"{source}: field 'provenance' is {fields.shown(envelope['provenance'])}, needs dict"
        )
    if kind is not None:
        _expect(source, "kind", envelope["kind"], kind, remedy)
    if schema is not None:
        _expect_version(source, "schema", envelope["schema"], schema, remedy)
    artifact = Artifact(
        kind=envelope["kind"],
        schema=envelope["schema"],
        head=envelope["head"],
        tables=_read_tables(source, envelope.get("tables", []), body),
        provenance=envelope.get("provenance", {}),
    )
    if artifact.digest != envelope["digest"]:
        raise ArtifactError(
            f"{source}: field 'digest' is {envelope['digest'][:12]}..., but the content's is "
            f"{artifact.digest[:12]}...: the file was altered or damaged; make it again"
        )
    return artifact


def _refuse_what_cannot_be_written(path: Path) -> None:
    # a file in place of a device or a pipe would remove it for all other processes
    if not path.exists():
        return
    if not path.is_file():
        raise OSError("it exists and is not a regular file")
    # one for reading alone could still be replaced, where its folder can be written
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _unwritable(path: Path, error: OSError) -> ArtifactError:
    return ArtifactError(f"{path}: cannot be written: {error.strerror or error}")


def _expect(source: str, name: str, actual: Any, required: Any, remedy: str = "") -> None:
    if actual != required:
        raise ArtifactError(
            f"{source}: field '{name}' is {fields.shown(actual)}, needs {required!r}{_then(remedy)}"
        )


def _expect_version(source: str, name: str, actual: Any, required: int, remedy: str) -> None:
    if isinstance(actual, int) and actual > required:
        remedy = "a newer headrace wrote the file: read it with that version, or make it again"
    elif isinstance(actual, int) and actual < required:
        remedy = f"an earlier headrace wrote the file: {remedy or 'make it again'}"
    _expect(source, name, actual, required, remedy)


def _then(remedy: str) -> str:
    return f"; {remedy}" if remedy else ""


def _little_endian(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))


def _table_to_ipc(table: Table) -> bytes:
    import pyarrow as pa  # a tenth of the time that a command takes to start

    arrow = pa.table({name: pa.array(_little_endian(table[name])) for name in sorted(table)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow.schema) as writer:
        writer.write_table(arrow)
    return sink.getvalue().to_pybytes()


def _read_tables(source: str, sizes: Any, body: bytes) -> dict[str, dict[str, np.ndarray]]:
    import pyarrow as pa

    try:
        pairs = [(str(name), int(size)) for name, size in sizes]
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"{source}: field 'tables' is not [[name, bytes], ...]") from error
    if sum(size for _, size in pairs) != len(body):
        raise ArtifactError(
            f"{source}: the tables take {len(body)} bytes, field 'tables' says "
            f"{sum(size for _, size in pairs)}: the file was cut short or altered"
        )
    tables: dict[str, dict[str, np.ndarray]] = {}
    offset = 0
    for name, size in pairs:
        try:
            blob = body[offset : offset + size]
            _refuse_what_expands(blob)
            arrow = pa.ipc.open_stream(blob).read_all()
            arrow.validate(full=True)  # a damaged length must not make us read past a buffer
            if arrow.nbytes > size:  # columns that share bytes of the file
                raise ValueError(f"its columns take more than its {size} bytes")
            tables[name] = {
                column: arrow.column(column).to_numpy(zero_copy_only=False)
                for column in arrow.column_names
            }
        except (pa.ArrowException, OSError, ValueError, KeyError, struct.error) as error:
            raise ArtifactError(f"{source}: table '{name}' is not Arrow IPC: {error}") from error
        offset += size
    return tables


def _refuse_what_expands(blob: bytes) -> None:
    """Raise ValueError for columns that take more memory than their bytes in the file.

    Arrow can compress, and has types whose values take no space or stand for many: a short file
    could fill the memory. Plain columns of numbers, which `save` writes, are as long as their
    bytes.
    """
    import pyarrow as pa

    for column in pa.ipc.read_schema(pa.py_buffer(blob)):
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise ValueError(f"column '{column.name}' has type {column.type}, needs numbers")
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(blob))
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        if message.type == "record batch" and _compressed(message.metadata.to_pybytes()):
            raise ValueError("its columns are compressed, needs plain ones")


def _compressed(metadata: bytes) -> bool:
    """Return whether the flatbuffer of a record batch names a compression (Arrow's Message.fbs)."""

    def number(kind: str, at: int) -> int:
        return int(struct.unpack_from(kind, metadata, at)[0])

    def field_of(table: int, index: int) -> int:
        """Return the position of field `index` of the table, or 0."""
        fields = table - number("<i", table)
        place = 4 + 2 * index
        offset = number("<H", fields + place) if place < number("<H", fields) else 0
        return table + offset if offset else 0

    header = field_of(number("<I", 0), 2)
    batch = header + number("<I", header)
    return field_of(batch, 3) != 0
