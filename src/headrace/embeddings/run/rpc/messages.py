"""Messages on a stream of Arrow Flight: a head of JSON, and columns of numbers without pickling.

The head is the metadata of the first record batch. The bytes of the columns follow one another, cut
into pieces: each is the one binary value of a batch.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
from numpy.typing import NDArray

from headrace.embeddings.errors import EmbeddingError
from headrace.errors import CommunicationError

_PIECE_BYTES = 2 << 20
"""Of a column: the receiver copies a piece while the next one arrives. In one piece, a column of
12 MB took half as long again."""
_JOINED_BYTES = 64 << 10
"""Columns below this size share a piece: a batch costs some 30 us, whatever its size."""

_PIECES = pa.schema([("bytes", pa.large_binary())])
_NUMBERS = re.compile(r"[<>|=][biufc]\d+")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RpcMessage:
    """A request, or a reply.

    Attributes
    ----------
    head : of values that JSON can express.
    columns : of numbers, any dtype and shape. Those that were received cannot be written to.
    """

    head: Mapping[str, Any]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum(column.nbytes for column in self.columns.values())


class Encoded:
    """A message as it is sent, once.

    Parameters
    ----------
    extra : entries besides its head.

    Raises
    ------
    EmbeddingError : a column is not of numbers.
    TypeError : JSON cannot express the head.
    """

    def __init__(self, message: RpcMessage, extra: Mapping[str, Any]) -> None:
        columns = message.columns
        self._columns = [_number_bytes(name, column) for name, column in columns.items()]
        head = {
            "head": message.head,
            "columns": [[name, column.dtype.str, column.shape] for name, column in columns.items()],
            **extra,
        }
        self._head = json.dumps(head, default=_plain).encode()

    def send(self, writer: fl.MetadataRecordBatchWriter) -> None:
        """Send it; pyarrow's errors pass."""
        pieces = map(_batch, _pieces(self._columns))
        head = pa.py_buffer(self._head)
        first = next(pieces, None)
        if first is None:
            writer.write_metadata(head)
            return
        writer.begin(_PIECES)
        writer.write_with_metadata(first, head)
        for piece in pieces:
            writer.write_batch(piece)


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a message's head has a {type(value).__name__}, needs values of JSON")


def _number_bytes(name: str, column: NDArray[Any]) -> NDArray[np.uint8]:
    if not _NUMBERS.fullmatch(column.dtype.str):
        raise EmbeddingError(f"column {name} is of {column.dtype}, needs numbers")
    return np.ascontiguousarray(column).reshape(-1).view(np.uint8)


def _pieces(columns: Iterable[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of columns, one after the other; only small columns are copied."""
    joined: list[NDArray[np.uint8]] = []
    joined_bytes = 0
    for column in columns:
        if len(column) < _JOINED_BYTES:
            joined.append(column)
            joined_bytes += len(column)
        if joined_bytes and (len(column) >= _JOINED_BYTES or joined_bytes >= _PIECE_BYTES):
            yield np.concatenate(joined)
            joined, joined_bytes = [], 0
        if len(column) >= _JOINED_BYTES:
            for start in range(0, len(column), _PIECE_BYTES):
                yield column[start : start + _PIECE_BYTES]
    if joined_bytes:
        yield np.concatenate(joined)


def _batch(piece: NDArray[np.uint8]) -> pa.RecordBatch:
    data = pa.py_buffer(piece)
    ends = pa.py_buffer(np.array([0, data.size], np.int64))
    value = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, data])
    return pa.record_batch([value], schema=_PIECES)


def receive_message(reader: fl.MetadataRecordBatchReader) -> tuple[RpcMessage, dict[str, Any]]:
    """Return a message, and the entries besides its head; pyarrow's errors pass.

    Raises
    ------
    EOFError : the stream ended before it.
    CommunicationError : it is no message.
    """
    chunk = _chunk(reader)
    if chunk.app_metadata is None:
        raise CommunicationError("a message has no head")
    try:
        extra: dict[str, Any] = json.loads(chunk.app_metadata.to_pybytes())
        head: Mapping[str, Any] = extra.pop("head")
        columns = {name: _empty(dtype, shape) for name, dtype, shape in extra.pop("columns")}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CommunicationError(f"a message has a head that cannot be read: {error}") from error
    data = np.empty(0, np.uint8) if chunk.data is None else _piece(chunk.data)
    for column in columns.values():
        data = _fill(column.reshape(-1).view(np.uint8), data, reader)
        column.flags.writeable = False
    if len(data):
        raise CommunicationError("a message has more bytes than its columns")
    return RpcMessage(head=head, columns=columns), extra


def _fill(
    target: NDArray[np.uint8], data: NDArray[np.uint8], reader: fl.MetadataRecordBatchReader
) -> NDArray[np.uint8]:
    """Fill `target` with bytes of `data` and of pieces to come; return the bytes that are left."""
    filled = 0
    while filled < len(target):
        if not len(data):
            data = _piece(_chunk(reader).data)
        count = min(len(data), len(target) - filled)
        target[filled : filled + count] = data[:count]
        data, filled = data[count:], filled + count
    return data


def _chunk(reader: fl.MetadataRecordBatchReader) -> fl.FlightStreamChunk:
    try:
        return reader.read_chunk()
    except StopIteration:
        raise EOFError("the stream ended") from None


def _empty(dtype: str, shape: list[int]) -> NDArray[Any]:
    if not _NUMBERS.fullmatch(dtype):
        raise ValueError(f"a column of {dtype}")
    return np.empty(shape, dtype)


def _piece(batch: pa.RecordBatch | None) -> NDArray[np.uint8]:
    """Return the value of a batch, where the transport left it: at no boundary of numbers."""
    if batch is None or batch.schema != _PIECES or batch.num_rows != 1:
        raise CommunicationError("a message has a piece that cannot be read")
    _, _, data = batch.column(0).buffers()
    if data is None or not data.size:
        raise CommunicationError("a message has an empty piece")
    return np.frombuffer(data, np.uint8)
