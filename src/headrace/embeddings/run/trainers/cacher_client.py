"""A trainer's side of the cacher: it joins a job, and takes its parts of the batches."""

import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from headrace import _native
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.batch_messages import decode_batch
from headrace.embeddings.run.batches import TrainerBatch
from headrace.embeddings.run.commits import Beginning, CommitFolder, Mark
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.handoff import Handoff
from headrace.embeddings.run.rpc.calls import RpcClient
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.embeddings.run.rpc.pulses import attend
from headrace.embeddings.run.step_times import TrainerTimes
from headrace.errors import CommunicationError

_LEAVE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedJob:
    """A job that a trainer has joined.

    Attributes
    ----------
    servers : addresses of the servers of rows, by their numbers.
    lookahead : batches that a decision looks at; None: as many as the caches have room for.
    prefetch : batches between a row's fetch and its use.
    folder : of the job's commits; None: there are none.
    start : number of this start of the job.
    mark : the commit that the job begins from; None: it begins anew.
    ideal : whether no rows move; see `headrace.embeddings.run.ideal`.
    """

    servers: tuple[str, ...]
    lookahead: int | None
    prefetch: int
    folder: CommitFolder | None = None
    start: int = 0
    mark: Mark | None = None
    ideal: bool = False


class CacherClient:
    """One trainer's connection with the cacher; a context manager.

    Parameters
    ----------
    address : of the cacher.
    deadline_s : of joining, and of each batch.

    Raises
    ------
    CommunicationError : the address is none.
    """

    def __init__(
        self, address: str, *, trainer: int, trainers: int, secret: str, deadline_s: float
    ) -> None:
        self._address = address
        self._secret = secret
        self._deadline_s = deadline_s
        self._trainers = trainers
        self.trainer = trainer
        self._client = self.connection()
        self._stream: CacherStream | None = None
        self._beginning = Beginning()
        self._pulse: _native.Pulse | None = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def connection(self) -> RpcClient:
        """Return a connection of its own with the cacher."""
        return RpcClient(
            self._address,
            peer_role="cacher",
            role=f"trainer {self.trainer}",
            secret=self._secret,
            deadline_s=self._deadline_s,
        )

    def join(self, description: JobDescription) -> JoinedJob:
        """Join the job; the answer comes when all trainers have.

        Raises
        ------
        EmbeddingError : another trainer describes the job otherwise, or there is no such trainer.
        CommunicationError : a role failed, or not all trainers joined before the deadline.
        """
        head = {
            "trainer": self.trainer,
            "trainers": self._trainers,
            "description": description.to_fields(),
        }
        if self._pulse is None:
            self._pulse = attend(self._client, f"trainer {self.trainer}", self._secret)
        reply = self._client.call("join", RpcMessage(head=head)).head
        folder, mark = reply["folder"], reply["mark"]
        mark = None if mark is None else Mark.from_fields(mark, "the cacher's mark")
        self._beginning = Beginning.after(mark)
        return JoinedJob(
            servers=tuple(reply["servers"]),
            lookahead=reply["lookahead"],
            prefetch=reply["prefetch"],
            folder=None if folder is None else CommitFolder(Path(folder)),
            start=reply["start"],
            mark=mark,
            ideal=reply["ideal"],
        )

    def epoch(self, epoch: int) -> "CacherStream":
        """Return the stream of an epoch, the one after the epoch before; they are taken in order.

        Raises
        ------
        EmbeddingError : the epoch before it has not ended.
        """
        first_batch = self._beginning.batch
        if self._stream is not None:
            end = self._stream.end
            if end is None:
                raise EmbeddingError(
                    f"epoch {epoch} begins before the last batch of the epoch before it: all "
                    "batches of an epoch are needed"
                )
            first_batch = end
        self._stream = CacherStream(self, epoch, first_batch, deadline_s=self._deadline_s)
        return self._stream

    def commit(self, fields: Mapping[str, Any]) -> None:
        """Tell the cacher that this trainer has written its part of a commit.

        It returns when the commit is marked, for which all trainers are awaited.

        Parameters
        ----------
        fields : `Mark`'s commit, epoch, epoch_began, batch and steps, and "groups" of the servers.

        Raises
        ------
        CommunicationError : the mark was not written, or a trainer is gone.
        """
        self._client.call("commit", RpcMessage(head={"trainer": self.trainer, **fields}))

    def report(self, times: TrainerTimes) -> None:
        """Tell the cacher the times of the last steps of an epoch."""
        self._tell("report", {"times": times.to_fields()})

    def leave(self) -> None:
        """Tell the cacher that this trainer takes no more batches."""
        self._tell("leave", {})

    def _tell(self, method: str, fields: Mapping[str, Any]) -> None:
        """Call a method, without a failure."""
        with suppress(CommunicationError):
            head = {"trainer": self.trainer, **fields}
            self._client.call(method, RpcMessage(head=head), deadline_s=_LEAVE_S)

    def close(self) -> None:
        """Close the stream and the connection; idempotent."""
        if self._stream is not None:
            self._stream.close()
        self._client.close()
        if self._pulse is not None:
            self._pulse.close()


class CacherStream:
    """One trainer's parts of an epoch's batches, each asked for ahead of its use.

    Attributes
    ----------
    end : number behind the epoch's last batch; None until that was taken.
    """

    def __init__(
        self, cacher: CacherClient, epoch: int, first_batch: int, *, deadline_s: float
    ) -> None:
        self._cacher = cacher
        self._epoch = epoch
        self._batch = first_batch
        self._deadline_s = deadline_s
        self._client = cacher.connection()
        self._parts: Handoff[TrainerBatch] = Handoff(1)
        self._noted: deque[TrainerTimes] = deque()
        self._closed = False
        self.end: int | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True, name="batches of the cacher")
        self._thread.start()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> TrainerBatch:
        """Return the next part.

        Raises
        ------
        EmbeddingError : the data are wrong.
        CommunicationError : a role failed, another trainer left, or the deadline passed.
        """
        with self._parts.changed:
            # The calls of the thread have the same deadline, and name the role that is late.
            if not self._parts.changed.wait_for(self._parts.ready, self._deadline_s + _LEAVE_S):
                raise CommunicationError(f"cacher, next: no batch within {self._deadline_s:g} s")
            part = self._parts.take()
            if self._closed:
                raise CommunicationError("cacher, next: the stream was closed")
            if part is None:
                self.end = self._batch
                raise StopIteration
            self._batch = part.batch + 1
            return part

    def note(self, times: TrainerTimes) -> None:
        """Note the times of a step: the next request has them."""
        self._noted.append(times)

    def _noted_times(self) -> TrainerTimes:
        times = TrainerTimes()
        while self._noted:
            times.add(self._noted.popleft())
        return times

    def close(self) -> None:
        """End a `__next__` that waits; the other trainers get an error at the next batch."""
        if self._closed:
            return
        self._closed = True
        self._parts.close()
        if self.end is None:
            self._cacher.leave()
        else:
            self._cacher.report(self._noted_times())
        self._client.close()
        self._thread.join(_LEAVE_S)

    def _ask(self) -> None:
        batch = self._batch
        try:
            while True:
                head = {
                    "trainer": self._cacher.trainer,
                    "batch": batch,
                    "epoch": self._epoch,
                    "times": self._noted_times().to_fields(),
                }
                reply = self._client.call("next", RpcMessage(head=head))
                if "end" in reply.head:
                    break
                if not self._parts.put(decode_batch(reply)):
                    return
                batch += 1
        except BaseException as error:  # of any kind: `__next__` raises it
            self._parts.end(error)
        else:
            self._parts.end()
