"""A server of embedding rows: calls of its methods, over rows that lie in native memory."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace import _native
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.process import RoleSettings
from headrace.embeddings.run.rpc.calls import EMPTY, RpcCall, RpcMethod, RpcServer
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.embeddings.run.servers.served_rows import JobStart, ServedJob, Shard, number_of
from headrace.host_memory import available_host_bytes
from headrace.launch.worker import Send

_NO_LIMIT = (1 << 64) - 1


class RowService:
    """Methods of one of a job's servers.

    ``start`` describes the job. ``fetch`` and ``write_back`` are a trainer's, for every batch;
    ``write_dirty`` and ``commit`` for every commit, which ``marked`` says all servers have made;
    ``read``, ``load`` and ``rows`` serve evaluation, import and export; ``status`` has figures.

    Parameters
    ----------
    number, servers : the server's, and how many there are.
    most_bytes : of memory that rows may have; None: without a limit.
    folder : of the job, for the logs of rows; None: commits leave nothing.
    """

    def __init__(
        self,
        number: int,
        servers: int,
        most_bytes: int | None = None,
        folder: Path | None = None,
    ) -> None:
        self._number = number
        self._servers = servers
        self._folder = folder
        self._memory = _native.RowMemory(_NO_LIMIT if most_bytes is None else most_bytes)
        self._changed = threading.Condition()
        self._starting = threading.Lock()
        self._job: ServedJob | None = None
        self.methods: Mapping[str, RpcMethod] = {
            "start": self._start,
            "fetch": self._fetch,
            "write_back": self._write_back,
            "write_dirty": self._write_dirty,
            "commit": self._commit,
            "marked": self._marked,
            "read": self._read,
            "load": self._load,
            "rows": self._rows,
            "status": self._status,
        }

    def close(self) -> None:
        """End the logs of rows."""
        with self._starting, self._changed:
            if self._job is not None:
                self._job.close()

    def _start(self, call: RpcCall) -> RpcMessage:
        head = call.message.head
        place = head.get("server"), head.get("servers")
        if place != (self._number, self._servers):
            raise EmbeddingError(
                f"server {self._number} of {self._servers} was started as server {place[0]} of "
                f"{place[1]}: give the addresses of all servers in their order"
            )
        description = JobDescription.from_fields(head["description"])
        start = JobStart.of(head)
        with self._starting:
            if self._job is None:
                job = ServedJob(
                    description,
                    start,
                    Shard(self._number, self._servers),
                    self._memory,
                    self._folder,
                    self._changed,
                )
                with self._changed:
                    self._job = job
            elif difference := self._job.difference(description, start.trainers):
                raise EmbeddingError(
                    f"server {self._number} serves another job, whose {difference} differ"
                )
        return EMPTY

    def _fetch(self, call: RpcCall) -> RpcMessage:
        job, head = self._started(), call.message.head
        group = number_of(head, "group", below=len(job.groups))
        after = number_of(head, "after", least=None)
        began = time.perf_counter()
        with self._changed:
            call.wait(self._changed, lambda: int(job.written[:, group].min()) >= after)
        waited = time.perf_counter()
        values = job.groups[group].fetch(call.message)
        with self._changed:
            job.times.fetched_rows += len(values)
            job.times.wait_s += waited - began
            job.times.fetch_s += time.perf_counter() - waited
        return RpcMessage(head={}, columns={"values": values})

    def _write_back(self, call: RpcCall) -> RpcMessage:
        job, head = self._started(), call.message.head
        trainer = number_of(head, "trainer", below=len(job.written))
        group = number_of(head, "group", below=len(job.groups))
        batch, commit = number_of(head, "batch"), number_of(head, "commit")
        with self._changed:
            expected = int(job.written[trainer, group]) + 1
            if batch != expected:
                raise EmbeddingError(
                    f"trainer {trainer} writes rows of batch {batch} back, needs batch {expected}"
                )
            if job.calls_left[trainer, group] == 0:
                job.calls_left[trainer, group] = number_of(head, "calls", least=1)
        began = time.perf_counter()
        written_rows = job.groups[group].write(call.message)
        written = time.perf_counter()
        job.log(commit, group, call.message)
        with self._changed:
            job.times.written_rows += written_rows
            job.times.write_s += written - began
            job.times.log_s += time.perf_counter() - written
            job.calls_left[trainer, group] -= 1
            if job.calls_left[trainer, group] == 0:
                job.written[trainer, group] = batch
                self._changed.notify_all()
        return EMPTY

    def _write_dirty(self, call: RpcCall) -> RpcMessage:
        """Log rows that stay in caches; they are written to the store when they are evicted."""
        job, head = self._started(), call.message.head
        group = number_of(head, "group", below=len(job.groups))
        job.log(number_of(head, "commit"), group, call.message)
        return EMPTY

    def _commit(self, call: RpcCall) -> RpcMessage:
        job, head = self._started(), call.message.head
        trainer = number_of(head, "trainer", below=len(job.written))
        number = number_of(head, "commit")

        def wait(predicate: Callable[[], bool]) -> None:
            with self._changed:
                call.wait(self._changed, predicate)

        groups = job.commits.take_part(number, trainer, lambda: job.make_commit(number), wait)
        return RpcMessage(head={"groups": groups})

    def _marked(self, call: RpcCall) -> RpcMessage:
        job = self._started()
        if job.logs is not None:
            job.logs.marked(number_of(call.message.head, "commit"))
        return EMPTY

    def _read(self, call: RpcCall) -> RpcMessage:
        job = self._started()
        group = number_of(call.message.head, "group", below=len(job.groups))
        return RpcMessage(head={}, columns={"values": job.groups[group].read(call.message)})

    def _load(self, call: RpcCall) -> RpcMessage:
        job = self._started()
        group, table = job.table(call.message.head)
        job.log(job.next_commit, job.groups.index(group), group.load(table, call.message))
        return EMPTY

    def _rows(self, call: RpcCall) -> RpcMessage:
        head = call.message.head
        group, table = self._started().table(head)
        after = number_of(head, "after", least=None)
        ids, values = group.listed(table, after, number_of(head, "limit", least=1))
        return RpcMessage(head={}, columns={"ids": ids, "values": values})

    def _status(self, call: RpcCall) -> RpcMessage:
        del call
        self._started()
        return RpcMessage(head=self.status())

    def status(self) -> Mapping[str, Any]:
        """Return rows, bytes and times; nothing before the job has started."""
        job = self._job
        return {} if job is None else {**job.status(), "bytes": self._memory.bytes}

    def _started(self) -> ServedJob:
        with self._changed:
            if self._job is None:
                raise EmbeddingError(f"server {self._number} has no job yet: start it first")
            return self._job


class _RowServer(RpcServer):
    """Serves a service's methods, and closes it."""

    def __init__(self, settings: RoleSettings, service: RowService) -> None:
        self._service = service
        super().__init__(settings.role, service.methods, secret=settings.secret, host=settings.host)

    def status(self) -> Mapping[str, Any]:
        return self._service.status()

    def close(self) -> None:
        super().close()
        self._service.close()


def serve(settings: RoleSettings, send: Send) -> _RowServer:
    """Serve a server's calls.

    Its options may have "folder", of the job, and "most_bytes", a limit on the memory of rows:
    without one it is 90% of what the host has available, of which each of the servers that it runs,
    "of_host", has an equal part, so that a call fails where the kernel would end the process.
    """
    del send
    most_bytes: int | None = settings.options.get("most_bytes")
    available = available_host_bytes()
    if most_bytes is None and available is not None:
        most_bytes = available * 9 // 10 // settings.options.get("of_host", 1)
    folder: str | None = settings.options.get("folder")
    service = RowService(
        settings.number, settings.count, most_bytes, None if folder is None else Path(folder)
    )
    return _RowServer(settings, service)
