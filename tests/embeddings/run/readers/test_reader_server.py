"""A reader's passes over the data: one batch after the other, and from any other on."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.embeddings import CriteoData, EmbeddingError
from headrace.embeddings.data.parts import ReaderPart
from headrace.embeddings.run.batch_messages import decode_ids
from headrace.embeddings.run.cacher.cacher import IdBatch
from headrace.embeddings.run.readers.reader_server import ReaderServer, serve
from headrace.embeddings.run.rpc.calls import RpcClient
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.errors import CommunicationError
from tests.embeddings.data.test_criteo import LINE
from tests.embeddings.run.jobs import SECRET, ListedBatches, id_batches, settings
from tests.embeddings.run.test_batch_messages import assert_same
from tests.waiting import HANG_S, STALL_S


class Passes(ListedBatches):
    """Counts the passes that begin."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.begun: list[tuple[int, int]] = []

    def batches(self, epoch: int, part: ReaderPart) -> Iterator[IdBatch]:
        self.begun.append((epoch, part.first))
        return super().batches(epoch, part)


@pytest.fixture
def passes() -> Passes:
    return Passes(9)


@pytest.fixture
def client(passes: Passes) -> Iterator[RpcClient]:
    server = ReaderServer(settings("reader", 1, 2), passes.of)
    role = "cacher"
    with RpcClient(
        server.address, peer_role="reader 1", role=role, secret=SECRET, deadline_s=HANG_S
    ) as client:
        yield client
    server.close()


def asked(client: RpcClient, batch: int, epoch: int = 0, **changes: Any) -> RpcMessage:
    head = {"data": {}, "columns": [], "reader": 1, "readers": 2, "epoch": epoch, "batch": batch}
    return client.call("next", RpcMessage(head=head | changes))


def test_batches_follow_in_one_pass_and_others_begin_another(
    client: RpcClient, passes: Passes
) -> None:
    for number in (1, 3, 5, 7):
        assert_same(decode_ids(asked(client, number)), id_batches(9)[number])
    assert asked(client, 9).head == {"end": True}
    assert asked(client, 9).head == {"end": True}
    assert passes.begun == [(0, 1)]
    assert_same(decode_ids(asked(client, 5)), id_batches(9)[5])
    assert_same(decode_ids(asked(client, 1, epoch=3)), id_batches(9, 3)[1])
    assert_same(decode_ids(asked(client, 3, epoch=3)), id_batches(9, 3)[3])
    assert passes.begun == [(0, 1), (0, 5), (3, 1)]


def test_a_second_call_for_a_batch_gets_that_batch_though_the_first_one_still_waits(
    client: RpcClient, passes: Passes
) -> None:
    """A connection can end at the cacher alone: the reader's call waits on, and took the batch.

    The call that the cacher made in its place then got the batch after it.
    """
    parsing, go_on = threading.Event(), threading.Event()

    def before(batch: int) -> None:
        if batch == 1:
            parsing.set()
            go_on.wait(HANG_S)

    passes.before = before
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(asked, client, 1)
        assert parsing.wait(HANG_S)
        second = threads.submit(asked, client, 1)
        until = time.monotonic() + STALL_S
        while len(passes.begun) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        go_on.set()
        assert_same(decode_ids(second.result()), id_batches(9)[1])
        with pytest.raises(CommunicationError, match="another call began another pass"):
            first.result()
    assert_same(decode_ids(asked(client, 3)), id_batches(9)[3])
    assert passes.begun == [(0, 1), (0, 1)]


def test_requests_that_are_none_are_refused(client: RpcClient) -> None:
    with pytest.raises(EmbeddingError, match="batch 2 is not one of reader 1 of 2"):
        asked(client, 2)
    with pytest.raises(EmbeddingError, match="reader is 2, needs 0 to 1"):
        asked(client, 2, reader=2)
    with pytest.raises(EmbeddingError, match="a request for a batch cannot be read: 'batch'"):
        client.call("next", RpcMessage(head={}))


def test_an_error_of_a_user_s_data_comes_after_the_batches_before_it(
    client: RpcClient, passes: Passes
) -> None:
    def before(batch: int) -> None:
        if batch == 5:
            raise KeyError("price")

    passes.before = before
    assert_same(decode_ids(asked(client, 1)), id_batches(9)[1])
    asked(client, 3)
    for _ in range(2):
        with pytest.raises(CommunicationError, match="reader 1, next: KeyError: 'price'"):
            asked(client, 5)


def test_rejected_lines_are_written_in_the_first_epoch_alone(tmp_path: Path) -> None:
    path, rejects = tmp_path / "clicks.tsv", tmp_path / "rejects.tsv"
    path.write_text("\n".join([LINE, "no example", LINE]))
    data = CriteoData.of([path], batch=4, most_rejected=0.5, rejects=rejects)
    server = serve(settings("reader"), lambda **_: None)
    head: dict[str, Any] = {
        "data": data.to_fields(),
        "columns": [[1, 0], [3]],
        "reader": 0,
        "readers": 1,
    }
    with RpcClient(
        server.address, peer_role="reader 0", role="cacher", secret=SECRET, deadline_s=HANG_S
    ) as client:
        for epoch in range(2):
            head["epoch"] = epoch
            ids = decode_ids(client.call("next", RpcMessage(head={**head, "batch": 0})))
            assert [table.tolist() for table in ids.ids] == [[1, 0, 1, 0], [3, 3]]
            assert ids.lengths[0] is not None
            assert ids.lengths[0].tolist() == [2, 2]
            end = client.call("next", RpcMessage(head={**head, "batch": 1}))
            assert end.head == {"end": True}
            assert rejects.read_text().startswith(f"{path}\t2\thas 1 columns")
            rejects.write_text(f"{path}\t2\thas 1 columns: of the first epoch")
        assert rejects.read_text().endswith("of the first epoch")
    server.close()


def test_a_pass_from_a_later_batch_keeps_the_rejected_lines(tmp_path: Path) -> None:
    """As of a cacher that began again from a commit: the pass before is at its end by then."""
    path, rejects = tmp_path / "clicks.tsv", tmp_path / "rejects.tsv"
    path.write_text("\n".join([LINE, "no example"] * 20))
    data = CriteoData.of([path], batch=2, most_rejected=0.5, rejects=rejects)
    server = serve(settings("reader"), lambda **_: None)
    head = {"data": data.to_fields(), "columns": [[1]], "reader": 0, "readers": 1, "epoch": 0}
    with RpcClient(
        server.address, peer_role="reader 0", role="cacher", secret=SECRET, deadline_s=HANG_S
    ) as client:
        heads = [
            client.call("next", RpcMessage(head={**head, "batch": batch})).head
            for batch in (0, *range(2, 21))
        ]
    assert heads[-1] == {"end": True}
    numbers = [int(line.split("\t")[1]) for line in rejects.read_text().splitlines()]
    assert numbers == [*range(2, 41, 2)]
    server.close()
