"""The cacher as a process: pulls batches from readers, decides, and serves each trainer's parts.

Batches are numbered on over epochs. The next epoch is decided as soon as the one before it is, up
to the room for parts, so that trainers that begin it do not wait for its first batches.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from headrace.embeddings.data.files import FORMATS, data_from_fields
from headrace.embeddings.data.origins import example_origin
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.batch_messages import encode_batch
from headrace.embeddings.run.cacher.cacher import (
    BatchDecisions,
    CacherOptions,
    FollowJob,
    RefusedBatchError,
    dispatched,
    unchanged,
)
from headrace.embeddings.run.cacher.cacher_options import CacherServerOptions
from headrace.embeddings.run.cacher.following import CacherPace, JobFollower
from headrace.embeddings.run.cacher.part_buffer import PartBuffer
from headrace.embeddings.run.cacher.server_start import ServerStart
from headrace.embeddings.run.commits import (
    Beginning,
    CommitFolder,
    DataFile,
    Mark,
    data_files,
)
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.ideal import without_transfers
from headrace.embeddings.run.joint_commits import JointCommits
from headrace.embeddings.run.process import RoleSettings
from headrace.embeddings.run.readers.reader_batches import ReaderBatches
from headrace.embeddings.run.readers.reader_connections import ReaderConnections
from headrace.embeddings.run.rpc.calls import EMPTY, RpcCall, RpcServer
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.embeddings.run.rpc.pulses import PULSES, PulseListener, silence_of
from headrace.embeddings.run.servers.row_client import mark_servers
from headrace.embeddings.run.servers.row_logs import ServerFolder
from headrace.embeddings.run.slots import cache_bytes_for
from headrace.embeddings.run.step_times import CacherTimes, Laps, TrainerTimes
from headrace.errors import CommunicationError
from headrace.launch.worker import Send
from headrace.units import size

_PULLED = 2
"""Batches of each reader that are pulled ahead of decisions."""

_SHOWN = 200
"""Characters of a field in which descriptions differ."""

BESIDE_PREFETCH = 2
"""Parts that are decided ahead of those whose rows a trainer fetches: one on its way, one next."""


class CacherServer:
    """Serves a job's trainers: `join`, `next` for each batch, `commit`, and `leave`.

    Every process of the job calls `attend`, and sends pulses from then on: those of a trainer that
    is gone end, and those of a process that is stopped or cut off fall silent.

    A job whose folder has a commit begins from it.

    Parameters
    ----------
    send : gets messages of processes that fell "silent", and of those that are "alive"; of each
        trainer that "attends".
    follower : lets decisions follow the job; None: they do not.

    Raises
    ------
    CommunicationError : the address cannot be listened at, or the folder cannot be made.
    EmbeddingError : the folder's commits cannot be read.
    """

    def __init__(
        self, settings: RoleSettings, send: Send, follower: JobFollower | None = None
    ) -> None:
        self._settings = settings
        self._follower = follower
        self._options = CacherServerOptions.of(settings.options)
        self._send = send
        self._changed = threading.Condition()
        self._joined: dict[int, JobDescription] = {}
        self._started = False
        self._lookahead, self._prefetch = self._options.lookahead, self._options.prefetch
        self._shares: Sequence[float] | None = None
        self._failure: Exception | None = None
        self._readers = ReaderConnections(
            self._options.readers, settings, restarted=self._options.readers_restart
        )
        self._closed = False
        folder = self._options.folder
        self._folder = None if folder is None else CommitFolder(Path(folder))
        # in this order: from here on no earlier start marks a commit, which would be lost
        self._start = 0 if self._folder is None else self._folder.begin()
        self._mark = None if self._folder is None else self._folder.newest()
        self._beginning = Beginning.after(self._mark)
        self._files: tuple[DataFile, ...] = ()
        self._batch: int | None = None
        self._times = CacherTimes()
        self._trainer_times = [TrainerTimes() for _ in range(self._options.trainers)]
        self._commits = JointCommits[None](self._options.trainers, self._changed)
        self._parts = PartBuffer(
            self._options.trainers,
            room=self._options.prefetch + BESIDE_PREFETCH,
            epoch=self._beginning.epoch,
            epoch_began=self._beginning.epoch_began,
            batch=self._beginning.batch,
        )
        methods = {
            "join": self._join,
            "attend": self._attend,
            "next": self._next,
            "commit": self._commit,
            "report": self._report,
            "leave": self._leave,
        }
        self._pulses = PulseListener(
            settings.host,
            settings.secret,
            self._options.silence_s,
            on_silence=self._report_silence,
            on_end=lambda role: self._note_end(role, "its connection ended"),
        )
        self._server = RpcServer(settings.role, methods, secret=settings.secret, host=settings.host)
        self._servers = ServerStart(settings, self._options, self._start, self._beginning)
        if self._mark is not None:
            self._servers.begin(self._mark.job)

    @property
    def address(self) -> str:
        """Address of the server, "host:port"."""
        return self._server.address

    def close(self) -> None:
        """Serve no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._parts.close()
        self._readers.close()
        self._server.close()
        self._pulses.close()

    def _join(self, call: RpcCall) -> RpcMessage:
        """Take a trainer in; answer when all are, and the servers have started."""
        trainer, description = self._joining(call)
        with self._changed:
            if trainer in self._joined:
                raise EmbeddingError(
                    f"trainer {trainer} has joined already: a job has one call of fit at each "
                    "trainer, so another model needs a job of its own"
                )
            self._check_equal(trainer, description)
            self._joined[trainer] = description
            if len(self._joined) == self._options.trainers:
                threading.Thread(
                    target=self._run, args=(description,), daemon=True, name="decisions"
                ).start()
            try:
                call.wait(self._changed, lambda: self._started or self._failure is not None)
            except CommunicationError as error:
                if len(self._joined) < self._options.trainers:
                    del self._joined[trainer]  # another process may join in its place
                raise CommunicationError(f"{error}; {self._absent()}") from error
            if self._failure is not None:
                raise self._failure
        head = {
            "servers": self._options.servers,
            "lookahead": self._options.lookahead,
            "prefetch": self._options.prefetch,
            "folder": self._options.folder,
            "start": self._start,
            "ideal": self._options.ideal,
            "mark": None if self._mark is None else self._mark.to_fields(),
        }
        return RpcMessage(head=head)

    def _joining(self, call: RpcCall) -> tuple[int, JobDescription]:
        head, trainers = call.message.head, self._options.trainers
        try:
            trainer, own_trainers = int(head["trainer"]), int(head["trainers"])
            description = JobDescription.from_fields(head["description"])
        except (KeyError, TypeError, ValueError) as error:
            raise EmbeddingError(f"a request to join cannot be read: {error}") from error
        if own_trainers != trainers or not 0 <= trainer < trainers:
            raise EmbeddingError(
                f"trainer {trainer} of {own_trainers} cannot join, this job has {trainers} trainers"
            )
        return trainer, description

    def _check_equal(self, trainer: int, description: JobDescription) -> None:
        """Raise, for all trainers, unless one describes the job as the others."""
        for joined, expected in self._joined.items():
            difference = expected.difference(description)
            if difference is not None:
                self._failure = EmbeddingError(
                    f"trainers {joined} and {trainer} differ in {difference} of the job, which "
                    "needs one model and one set of data: "
                    f"{_shortened(expected, difference)} and {_shortened(description, difference)}"
                )
                self._changed.notify_all()
                raise self._failure

    def _absent(self) -> str:
        absent = [str(t) for t in range(self._options.trainers) if t not in self._joined]
        return f"trainers that have not joined: {', '.join(absent)}" if absent else "all had joined"

    def _next(self, call: RpcCall) -> RpcMessage:
        head = call.message.head
        self._report(call)
        return self._parts.take(call, head["trainer"], head["batch"], head["epoch"])

    def _report(self, call: RpcCall) -> RpcMessage:
        """Add the times of a trainer's steps."""
        head = call.message.head
        times = TrainerTimes.from_fields(head["times"])
        self._trainer_times[head["trainer"]].add(times)
        if self._follower is not None:
            self._follower.report(head["trainer"], times)
        return EMPTY

    def status(self) -> Mapping[str, Any]:
        """Return the cacher's times and the trainers', and the job's numbers."""
        return {
            "times": self._times.to_fields(),
            "trainers": [times.to_fields() for times in self._trainer_times],
            "lookahead": self._lookahead,
            "adaptation": None if self._follower is None else self._follower.status(),
            "first_batch": self._beginning.batch,
            "batch": self._batch,
        }

    def _commit(self, call: RpcCall) -> RpcMessage:
        """Mark a commit when the last trainer has written its part; answer when it is marked."""
        head = call.message.head

        def wait(predicate: Callable[[], bool]) -> None:
            with self._changed:
                call.wait(self._changed, lambda: predicate() or self._closed)
                if not predicate():
                    raise CommunicationError("the cacher was closed")

        self._commits.take_part(
            head["commit"], head["trainer"], lambda: self._write_mark(head), wait
        )
        return EMPTY

    def _write_mark(self, head: Mapping[str, Any]) -> None:
        if self._folder is None:
            return
        servers = len(self._options.servers)
        description = self._joined[head["trainer"]]
        self._folder.write(
            Mark(
                start=self._start,
                commit=head["commit"],
                epoch=head["epoch"],
                epoch_began=head["epoch_began"],
                batch=head["batch"],
                steps=head["steps"],
                trainers=self._options.trainers,
                servers=tuple(
                    ServerFolder(start=self._start, server=server, servers=servers, groups=groups)
                    for server, groups in enumerate(head["groups"])
                ),
                job=description,
                files=self._files,
            )
        )
        mark_servers(
            self._options.servers,
            head["commit"],
            role=self._settings.role,
            secret=self._settings.secret,
            deadline_s=self._settings.deadline_s,
        )

    def _attend(self, call: RpcCall) -> RpcMessage:
        """Say where a process's pulses go; of a reader it may be another process than before."""
        kind, _, number = call.peer.partition(" ")
        if kind == "reader" and number.isdigit() and int(number) < len(self._readers):
            self._readers.replace(int(number), str(call.message.head["address"]))
        if kind == "trainer":
            self._send(attends=call.peer)
        interval_s = self._options.silence_s / PULSES
        return RpcMessage(head={"pulses": self._pulses.address, "interval_s": interval_s})

    def _leave(self, call: RpcCall) -> RpcMessage:
        self._note_end(f"trainer {call.message.head['trainer']}", "its batches were closed")
        return EMPTY

    def trainer_ended(self, trainer: int) -> None:
        """Give all others an error where a trainer's process ended before it joined."""
        with self._changed:
            joined = trainer in self._joined
        if not joined:
            text = (
                f"trainer {trainer} ended without a call of headrace.embeddings.fit, which each of "
                f"the job's {self._options.trainers} trainers has to make"
            )
            self._fail(EmbeddingError(text))

    def _note_end(self, role: str, reason: str) -> None:
        """Tell the trainers that wait for one that it is gone."""
        kind, _, number = role.partition(" ")
        if kind == "trainer":
            self._parts.leave(int(number), reason)
            self._commits.leave(int(number), reason)

    def _report_silence(self, silent: Sequence[str], alive: Sequence[str]) -> None:
        with suppress(OSError):  # the parent is gone
            self._send(silent=silent, alive=alive)
        numbers = [int(role.split()[1]) for role in silent if role.startswith("reader ")]
        if self._readers.restarted and len(numbers) == len(silent):
            for number in numbers:
                self._readers.reset(number)
            return
        reason = silence_of(self._options.silence_s)
        for role in silent:
            self._note_end(role, reason)
        self._fail(CommunicationError(f"{', '.join(silent)}: {reason}"))

    def _run(self, description: JobDescription) -> None:
        """Start the servers, and decide epoch after epoch, until trainers leave or a failure."""
        beginning = self._beginning
        epoch = beginning.epoch
        try:
            if self._mark is not None:
                self._mark.check(description)
            if self._folder is not None:
                # as they are now: a later commit is of the batches that were in them
                self._files = data_files(description.data)
            self._batch = description.data.get("batch")
            options = self._options.decisions(description)
            self._servers.finish(description)
            job = {"data": description.data, "columns": description.columns}
            first_batch = beginning.batch
            first_of_epoch = beginning.batch - beginning.epoch_began
            with self._changed:
                self._started = True
                self._changed.notify_all()
            for epoch in count(beginning.epoch):
                with ReaderBatches(
                    self._readers,
                    job,
                    epoch,
                    ahead=_PULLED,
                    first=first_of_epoch,
                    changed=self._parts.changed,
                ) as batches:
                    try:
                        end = self._decide(batches, options, first_batch)
                    except RefusedBatchError as error:
                        batch = error.batch - first_batch + first_of_epoch
                        raise _explained(error, description, batch) from error
                options = replace(
                    options,
                    lookahead=self._lookahead,
                    prefetch=self._prefetch,
                    shares=self._shares,
                )
                if end is None:
                    return
                if end == first_batch and first_of_epoch == 0:
                    raise EmbeddingError(f"the data have no batch in epoch {epoch}")
                self._parts.end_epoch(end)
                first_batch, first_of_epoch = end, 0
        except Exception as error:
            self._fail(error, epoch)

    def _fail(self, error: Exception, epoch: int = 0) -> None:
        """Give an error to all trainers, those that join and those that take batches."""
        self._parts.fail(error, epoch)
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _decide(
        self, batches: ReaderBatches, options: CacherOptions, first_batch: int
    ) -> int | None:
        """Decide an epoch; return the number behind its last batch, None where trainers left."""
        end = first_batch
        laps, reader_wait_s = Laps(), 0.0
        follow = self._following(CacherPace(batches, self._parts))
        for parts in dispatched(
            batches, options, self._set_lookahead, first_batch=first_batch, follow=follow
        ):
            times = CacherTimes(batches=1, reader_wait_s=batches.wait_s - reader_wait_s)
            reader_wait_s = batches.wait_s
            times.decide_s = laps.lap() - times.reader_wait_s
            if self._options.ideal:
                parts = without_transfers(parts)
            messages = [encode_batch(part) for part in parts]
            times.dispatched_bytes = sum(message.nbytes for message in messages)
            times.dispatch_s = laps.lap()
            if not self._parts.put(end, messages):
                return None
            times.room_wait_s = laps.lap()
            times.batches_ahead = self._parts.ahead(end)
            self._times.add(times)
            end += 1
        return end

    def _set_lookahead(self, lookahead: int) -> None:
        self._lookahead = lookahead

    def _following(self, pace: CacherPace) -> FollowJob:
        """Return a follower's view of the decisions; changes hold in later epochs, too."""
        follower = self._follower
        if follower is None:
            return unchanged

        def follow(decisions: BatchDecisions) -> None:
            follower.follow(decisions, pace)
            self._lookahead, self._prefetch = decisions.lookahead, decisions.prefetch
            self._shares = decisions.shares

        return follow


def _explained(error: RefusedBatchError, description: JobDescription, batch: int) -> EmbeddingError:
    """Return the error of a batch that names the line, or the size of the cache, to change.

    Parameters
    ----------
    batch : its number in the epoch.
    """
    if error.outside is None:
        groups, columns = description.groups, description.columns
        cache_bytes = cache_bytes_for(groups, columns, error.group, error.rows)
        return EmbeddingError(
            f"{error}: needs a cache of {size(cache_bytes)} or more, or smaller batches"
        )
    if description.data.get("format") not in FORMATS:
        return error
    data = data_from_fields(description.data)
    return error.outside.error(example_origin(data, batch, error.outside.example))


def _shortened(description: JobDescription, field: str) -> str:
    text = str(getattr(description, field))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
