"""The cacher's side of the readers: batches of an epoch pulled from all of them, in order."""

import threading
from collections.abc import Mapping
from itertools import count
from typing import Any, Self

from headrace.embeddings.run.batch_messages import decode_ids
from headrace.embeddings.run.cacher.cacher import IdBatch
from headrace.embeddings.run.readers.reader_connections import ReaderConnections
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.embeddings.run.step_times import Laps
from headrace.errors import CommunicationError


class ReaderBatches:
    """Batches of an epoch; a context manager that pulls them in a thread for each reader.

    Parameters
    ----------
    readers : of the job.
    job : the job's "data" and "columns", for the readers.
    ahead : batches of each reader that are pulled before they are taken.
    first : first batch of the epoch that is taken.
    changed : guards the batches, and is notified of every change; None: one of their own.

    Attributes
    ----------
    wait_s : seconds in which batches were waited for.
    """

    def __init__(
        self,
        readers: ReaderConnections,
        job: Mapping[str, Any],
        epoch: int,
        *,
        ahead: int,
        first: int = 0,
        changed: threading.Condition | None = None,
    ) -> None:
        self._readers = readers
        self._job = {**job, "epoch": epoch, "readers": len(readers)}
        self._most_ahead = ahead * len(readers)
        self._changed = changed or threading.Condition()
        self._arrived: dict[int, IdBatch | BaseException | None] = {}
        self._first = first
        self._batch = first
        self._closed = False
        self.wait_s = 0.0

    def __enter__(self) -> Self:
        for reader in range(len(self._readers)):
            threading.Thread(
                target=self._pull, args=(reader,), daemon=True, name=f"pull {reader}"
            ).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Pull no more: a call that waits ends by itself, or with its client."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def arrived(self) -> bool:
        """True if the next batch, or the end, can be taken without a wait."""
        with self._changed:
            return self._batch in self._arrived or self._closed

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> IdBatch:
        """Return the next batch.

        Raises
        ------
        EmbeddingError : the data are wrong.
        CommunicationError : a reader failed, or did not answer within the deadline of its client.
        """
        with self._changed:
            laps = Laps()
            # Every call that pulls has a deadline.
            self._changed.wait_for(lambda: self.arrived)
            self.wait_s += laps.lap()
            if self._closed:
                raise CommunicationError("the batches of readers were closed")
            batch = self._arrived[self._batch]
            if batch is None:
                raise StopIteration
            if isinstance(batch, BaseException):
                raise batch
            del self._arrived[self._batch]
            self._batch += 1
            self._changed.notify_all()
            return batch

    def _pull(self, reader: int) -> None:
        """Pull a reader's batches to the end, or to an error, which is the one of its batch."""
        readers = len(self._readers)
        first = self._first + (reader - self._first) % readers
        for number in count(first, readers):
            with self._changed:
                self._changed.wait_for(
                    lambda number=number: number < self._batch + self._most_ahead or self._closed
                )
                if self._closed:
                    return
            batch = self._batch_of(reader, number)
            with self._changed:
                self._arrived[number] = batch
                self._changed.notify_all()
            if not isinstance(batch, IdBatch):
                return

    def _batch_of(self, reader: int, number: int) -> IdBatch | BaseException | None:
        request = RpcMessage(head={**self._job, "reader": reader, "batch": number})
        try:
            reply = self._readers.next(reader, request)
            return None if "end" in reply.head else decode_ids(reply)
        except Exception as error:
            return error
