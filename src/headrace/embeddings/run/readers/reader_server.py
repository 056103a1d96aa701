"""A reader: parses batches of ids ahead of the cacher, which pulls them.

Several readers share the batches of an epoch: reader r of n has batches r, r + n, ... It parses an
epoch in one pass, as long as it is asked for one batch after the other, and begins another pass at
any other batch, data or epoch, and at a batch that an earlier call still waits for: of that one the
cacher has lost the connection.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from headrace.embeddings.data.files import ExampleData, ExampleFiles, data_from_fields
from headrace.embeddings.data.parts import ReaderPart, part_batches
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.batch_messages import encode_ids
from headrace.embeddings.run.cacher.cacher import IdBatch, table_batch
from headrace.embeddings.run.handoff import Handoff
from headrace.embeddings.run.process import RoleSettings
from headrace.embeddings.run.rpc.calls import RpcCall, RpcServer
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.embeddings.run.step_times import Laps, ReaderTimes
from headrace.errors import CommunicationError
from headrace.launch.worker import Send

AHEAD = 4
"""Batches that are parsed before they are pulled: some 10 MB."""


class BatchSource(Protocol):
    """Data of a job, in batches."""

    def batches(self, epoch: int, part: ReaderPart) -> Iterator[IdBatch]:
        """Yield the batches of a part of an epoch, in their order.

        Raises
        ------
        EmbeddingError : the data are wrong.
        """
        ...


SourceOf = Callable[[Mapping[str, Any], Sequence[Sequence[int]]], BatchSource]
"""Returns the source of data by its fields, and by the columns of ids that tables look up."""


@dataclass(frozen=True, slots=True)
class FileBatches:
    """Batches of files.

    Attributes
    ----------
    columns : of every table, the columns of the data's ids that it is looked up with.
    """

    data: ExampleData
    columns: Sequence[Sequence[int]]

    @classmethod
    def of(cls, fields: Mapping[str, Any], columns: Sequence[Sequence[int]]) -> Self:
        """Return those of data that fields describe.

        Raises
        ------
        EmbeddingError : the fields are no data's.
        """
        return cls(data_from_fields(fields), columns)

    def batches(self, epoch: int, part: ReaderPart) -> Iterator[IdBatch]:
        """Yield the batches of a part, the same ones in every epoch."""
        data = self.data
        if epoch > 0 and isinstance(data, ExampleFiles):
            data = replace(data, rejects=None)  # the first epoch's are all of them
        for examples in part_batches(data, part):
            yield table_batch(examples, self.columns)


def serve(settings: RoleSettings, send: Send) -> "ReaderServer":
    """Serve the batches of files."""
    return ReaderServer(settings, FileBatches.of, send)


class ReaderServer:
    """Serves the method `next`: a batch, or the end of the epoch.

    Its head has the job's "data" and "columns", the number of the "reader" among "readers", the
    "epoch" and the "batch" in it.

    Parameters
    ----------
    send : gets the message "serves" with the first batch.

    Raises
    ------
    CommunicationError : the address cannot be listened at.
    """

    def __init__(
        self,
        settings: RoleSettings,
        source_of: SourceOf,
        send: Send = lambda **_message: None,
    ) -> None:
        self._send = send
        self._serves = False
        self._source_of = source_of
        self._lock = threading.Lock()
        self._pass: _Pass | None = None
        self._times = ReaderTimes()
        self._server = RpcServer(
            settings.role, {"next": self._next}, secret=settings.secret, host=settings.host
        )

    @property
    def address(self) -> str:
        """Address of the server, "host:port"."""
        return self._server.address

    def status(self) -> Mapping[str, Any]:
        """Return the times of all batches so far."""
        return {"times": self._times.to_fields()}

    def close(self) -> None:
        """Serve no more."""
        with self._lock:
            if self._pass is not None:
                self._pass.close()
        self._server.close()

    def _next(self, call: RpcCall) -> RpcMessage:
        request = dict(call.message.head)
        try:
            batch = request.pop("batch")
            with self._lock:
                if self._pass is None or not self._pass.admits(request, batch):
                    previous = self._pass
                    if previous is not None:
                        previous.close()
                    self._pass = self._begin(request, batch, previous)
                current_pass = self._pass
        except (KeyError, TypeError) as error:
            raise EmbeddingError(f"a request for a batch cannot be read: {error}") from error
        reply = current_pass.take(call)
        if not self._serves:
            self._serves = True
            self._send(serves=True)
        return reply

    def _begin(self, request: Mapping[str, Any], batch: int, previous: "_Pass | None") -> "_Pass":
        source = self._source_of(request["data"], request["columns"])
        part = ReaderPart(reader=request["reader"], readers=request["readers"], first=batch)
        batches = source.batches(request["epoch"], part)
        return _Pass(request, part, batches, self._times, previous)


class _Pass:
    """Batches of a part of an epoch, parsed ahead in a thread, from a call for the first one on.

    Parameters
    ----------
    previous : a closed pass, whose thread this one's waits for: both write rejected lines to one
        file, and iterate one loader.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        part: ReaderPart,
        batches: Iterator[IdBatch],
        times: ReaderTimes,
        previous: "_Pass | None",
    ) -> None:
        self._request = request
        self._times = times
        self._readers = part.readers
        self._batch = part.first
        self._closed = False
        self._awaited = True  # by a call, whose caller may have lost it
        self._messages: Handoff[RpcMessage] = Handoff(AHEAD)
        before = None if previous is None else previous.thread
        self.thread = threading.Thread(
            target=self._parse, args=(batches, before), daemon=True, name="parse"
        )
        self.thread.start()

    def admits(self, request: Mapping[str, Any], batch: int) -> bool:
        """Return whether a call is for the next batch of this pass, which no other one awaits."""
        if self._closed or self._awaited or batch != self._batch or request != self._request:
            return False
        self._awaited = True
        return True

    def take(self, call: RpcCall) -> RpcMessage:
        """Return the next batch, or the end of the epoch, to the call that was admitted.

        Raises
        ------
        CommunicationError : the deadline passed, or another pass began.
        """
        try:
            with self._messages.changed:
                return self._taken(call)
        finally:
            self._awaited = False

    def _taken(self, call: RpcCall) -> RpcMessage:
        call.wait(self._messages.changed, self._messages.ready)
        message = self._messages.take()
        if self._closed:
            raise CommunicationError("another call began another pass over the data")
        if message is None:
            return RpcMessage(head={"end": True})
        self._batch += self._readers
        self._times.batches_ahead += len(self._messages)
        return message

    def close(self) -> None:
        """Parse no more."""
        self._closed = True
        self._messages.close()

    def _parse(self, batches: Iterator[IdBatch], before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        laps, times = Laps(), self._times
        try:
            for batch in batches:
                message = encode_ids(batch)
                times.parse_s += laps.lap()
                times.batches += 1
                times.examples += batch.examples
                times.read_bytes += message.nbytes
                if not self._messages.put(message):
                    return
                times.room_wait_s += laps.lap()
        except BaseException as error:  # of any kind: the cacher gets it
            self._messages.end(error)
        else:
            self._messages.end()
