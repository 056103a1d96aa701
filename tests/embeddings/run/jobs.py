"""Readers and a cacher in this process, over loopback."""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from headrace.embeddings.data.parts import ReaderPart
from headrace.embeddings.run.cacher.cacher import IdBatch
from headrace.embeddings.run.cacher.cacher_server import CacherServer
from headrace.embeddings.run.cacher.following import JobFollower
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.process import RoleSettings
from headrace.embeddings.run.readers.reader_server import ReaderServer, SourceOf
from headrace.embeddings.run.rpc.calls import EMPTY, RpcCall, RpcClient, RpcServer
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.embeddings.run.trainers.cacher_client import CacherClient
from headrace.embeddings.tables import EmbeddingTable, table_groups
from tests.waiting import ENDLESS_S, HANG_S

SECRET = "of the test"
TABLES = (
    EmbeddingTable(name="items", rows=50, dim=4),
    EmbeddingTable(name="shops", rows=9, dim=2),
)


def description(**changes: Any) -> JobDescription:
    values: dict[str, Any] = {
        "tables": TABLES,
        "columns": ((0,), (1,)),
        "groups": table_groups(TABLES),
        "slots": (50, 9),
        "seed": 0,
        "data": {"batches": 7},
    }
    return JobDescription(**(values | changes))


def id_batches(count: int, epoch: int = 0, examples: int = 6) -> list[IdBatch]:
    """Return random batches, the same ones in every call."""
    random = np.random.default_rng(epoch)
    return [
        IdBatch(
            examples=examples,
            fields={"labels": np.full(examples, float(number))},
            ids=(random.integers(0, 50, examples), random.integers(0, 9, examples)),
            lengths=(None, None),
        )
        for number in range(count)
    ]


class ListedBatches:
    """A source of `id_batches`.

    Parameters
    ----------
    before : called before every batch is handed over, with its number.
    """

    def __init__(self, count: int, before: Callable[[int], None] = lambda _batch: None) -> None:
        self.count = count
        self.before = before

    def batches(self, epoch: int, part: ReaderPart) -> Iterator[IdBatch]:
        listed = id_batches(self.count, epoch)
        for number in range(part.first, self.count, part.readers):
            self.before(number)
            yield listed[number]

    def of(self, data: Mapping[str, Any], columns: Sequence[Sequence[int]]) -> "ListedBatches":
        del data, columns
        return self


def settings(kind: str, number: int = 0, count: int = 1, **options: Any) -> RoleSettings:
    return RoleSettings(
        kind=kind,
        number=number,
        count=count,
        host="127.0.0.1",
        deadline_s=ENDLESS_S,
        secret=SECRET,
        options=options,
    )


class Servers:
    """Servers of rows that only start, and take marks of commits.

    Attributes
    ----------
    started : their heads, in the order of calls.
    """

    def __init__(self, fails: str | None = None) -> None:
        self.fails = fails
        self.started: list[Mapping[str, Any]] = []

    def start(self, call: RpcCall) -> RpcMessage:
        if self.fails is not None:
            raise MemoryError(self.fails)
        self.started.append(call.message.head)
        return EMPTY


class RunningJob:
    """A cacher and readers of a job.

    Attributes
    ----------
    messages : of the cacher to its parent.
    """

    def __init__(
        self,
        sources: Sequence[SourceOf],
        trainers: int,
        servers: Servers | None = None,
        follower: JobFollower | None = None,
        **options: Any,
    ) -> None:
        self.ends = ExitStack()
        self.sources = sources
        self.trainers = trainers
        self.servers = servers or Servers()
        rpc = RpcServer(
            "server 0", {"start": self.servers.start, "marked": lambda _: EMPTY}, secret=SECRET
        )
        self.ends.callback(rpc.close)
        self.readers = [self.reader(number) for number in range(len(sources))]
        values: dict[str, Any] = {
            "trainers": trainers,
            "servers": [rpc.address],
            "readers": [reader.address for reader in self.readers],
            "lookahead": 3,
            "prefetch": 2,
            "synchronisation": "targeted",
        }
        self.messages: list[Mapping[str, Any]] = []
        self.cacher = CacherServer(
            settings("cacher", **(values | options)),
            lambda **message: self.messages.append(message),
            follower,
        )
        self.ends.callback(self.cacher.close)

    def reader(self, number: int) -> ReaderServer:
        """Return another process of a reader."""
        reader = ReaderServer(settings("reader", number, len(self.sources)), self.sources[number])
        self.ends.callback(reader.close)
        return reader

    def let_attend(self, number: int, reader: ReaderServer) -> None:
        """Tell the cacher of another process of a reader."""
        with RpcClient(
            self.cacher.address, peer_role="cacher", role=f"reader {number}", secret=SECRET
        ) as client:
            client.call("attend", RpcMessage(head={"address": reader.address}))

    def client(self, trainer: int, deadline_s: float = ENDLESS_S) -> CacherClient:
        client = CacherClient(
            self.cacher.address,
            trainer=trainer,
            trainers=self.trainers,
            secret=SECRET,
            deadline_s=deadline_s,
        )
        self.ends.callback(client.close)
        return client

    def joined(self) -> list[CacherClient]:
        """Return the clients of all trainers, when all have joined."""
        clients = [self.client(trainer) for trainer in range(self.trainers)]
        at_once([lambda client=client: client.join(description()) for client in clients])
        return clients


@contextmanager
def running(
    sources: Sequence[SourceOf],
    trainers: int,
    servers: Servers | None = None,
    follower: JobFollower | None = None,
    **options: Any,
) -> Generator[RunningJob]:
    job = RunningJob(sources, trainers, servers, follower, **options)
    with job.ends:
        yield job


def at_once(actions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return what all actions return, each in a thread; or raise the first one's error."""
    results: list[Any] = [None] * len(actions)
    errors: list[BaseException] = []

    def act(number: int) -> None:
        try:
            results[number] = actions[number]()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=act, args=(number,), daemon=True) for number in range(len(actions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert not any(thread.is_alive() for thread in threads), "an action hangs"
    if errors:
        raise errors[0]
    return results
