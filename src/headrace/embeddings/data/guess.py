"""Formats of files of examples, by how the files begin."""

from pathlib import Path
from typing import NamedTuple

from headrace.embeddings.data.avazu import HEADER
from headrace.embeddings.data.format_names import FormatName
from headrace.embeddings.data.text import read_errors
from headrace.embeddings.errors import ExampleError

_FIRST_BYTES = 1 << 16


class Guess(NamedTuple):
    """A format, and what speaks for it."""

    name: FormatName
    reason: str


def guess_format(path: Path) -> Guess:
    """Return the format of a file, by its first line; compressed text is unpacked.

    Raises
    ------
    ExampleError : the file cannot be read, or begins as none of the formats.
    """
    import pyarrow as pa

    with read_errors(path):
        with path.open("rb") as file:
            if file.read(4) == b"PAR1":
                return Guess("parquet", "it begins with PAR1")
        with pa.input_stream(str(path), compression="detect") as stream:
            line: bytes = stream.read(_FIRST_BYTES).partition(b"\n")[0]
    if line.startswith(HEADER[0].encode() + b","):
        return Guess("avazu", "its first line is a header that begins with id")
    if b"\t" in line:
        return Guess("criteo", "its first line has tabs")
    if not line.rstrip(b"\r"):
        return Guess("criteo", "its first line is empty")
    begin = line[:20].decode("utf-8", "replace")
    raise ExampleError(
        f"{path}: begins with {begin!r}, as files of none of the formats criteo, avazu and "
        "parquet: name it by --format"
    )
