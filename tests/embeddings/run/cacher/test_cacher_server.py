"""The cacher between readers and trainers: parts of batches over several epochs, and failures."""

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.embeddings import CriteoData, EmbeddingError, EmbeddingTable, InitialValues
from headrace.embeddings.data.criteo import HASHES
from headrace.embeddings.run.batches import TrainerBatch
from headrace.embeddings.run.cacher.cacher import BatchDecisions, CacherOptions, dispatched
from headrace.embeddings.run.cacher.following import CacherPace
from headrace.embeddings.run.commits import CommitFolder
from headrace.embeddings.run.readers.reader_server import AHEAD, FileBatches, ReaderServer
from headrace.embeddings.run.step_times import TrainerTimes
from headrace.embeddings.run.trainers.cacher_client import CacherClient, CacherStream
from headrace.embeddings.tables import table_groups
from headrace.errors import CommunicationError, HeadraceError
from tests.embeddings.data.test_criteo import LINE
from tests.embeddings.run.jobs import (
    TABLES,
    ListedBatches,
    RunningJob,
    Servers,
    at_once,
    description,
    id_batches,
    running,
)
from tests.embeddings.run.test_batch_messages import assert_same
from tests.embeddings.run.test_commits import mark_of
from tests.waiting import STALL_S, no_hang, wait_until


def taken(stream: CacherStream, most: int = 1000) -> list[TrainerBatch]:
    """Take parts up to the end of an epoch, or up to a number of them."""
    parts: list[TrainerBatch] = []
    for part in stream:
        parts.append(part)
        if len(parts) == most:
            break
    return parts


def epochs(clients: list[CacherClient], epoch: int) -> list[list[TrainerBatch]]:
    return at_once([lambda client=client: taken(client.epoch(epoch)) for client in clients])


@pytest.mark.parametrize(
    ("trainers", "readers", "lookahead"), [(1, 1, 3), (3, 2, 3), (2, 9, 3), (2, 1, None)]
)
def test_trainers_get_the_parts_of_one_process_in_every_epoch(
    trainers: int, readers: int, lookahead: int | None
) -> None:
    """A lookahead that the caches' room decides is that of the first epoch in all."""
    source = ListedBatches(7)
    servers = Servers()
    options = CacherOptions(
        tables=TABLES,
        groups=table_groups(TABLES),
        slots=(50, 9),
        trainers=trainers,
        lookahead=lookahead,
        prefetch=2,
        commit_every=4,
    )
    with running(
        [source.of] * readers, trainers, servers, lookahead=lookahead, commit_every=4
    ) as job:
        clients = job.joined()
        lookaheads: list[int] = []
        for epoch in range(3):
            received = epochs(clients, epoch)
            expected = [
                *dispatched(id_batches(7, epoch), options, lookaheads.append, first_batch=7 * epoch)
            ]
            options = replace(options, lookahead=lookaheads[0])
            for trainer, parts in enumerate(received):
                assert len(parts) == 7
                for part, reference in zip(parts, expected, strict=True):
                    assert_same(part, reference[trainer])
    (start,) = servers.started
    assert (start["server"], start["servers"], start["trainers"]) == (0, 1, trainers)
    assert start["description"]["seed"] == 0


class SharesOnce:
    """A follower that gives trainers other shares when it first looks at a job."""

    def __init__(self, *shares: float) -> None:
        self.shares = shares
        self.looked = False

    def report(self, trainer: int, times: TrainerTimes) -> None:
        pass

    def follow(self, decisions: BatchDecisions, pace: CacherPace) -> None:
        if not self.looked:
            decisions.shares = self.shares
        self.looked = True

    def status(self) -> Mapping[str, Any]:
        return {}


@pytest.mark.parametrize("lookahead", [3, 7])
def test_shares_that_a_job_has_hold_from_the_first_batch_of_later_epochs(lookahead: int) -> None:
    """Each epoch began with equal ones; one of no more batches than the lookahead had no others."""
    follower = SharesOnce(1 / 3, 2 / 3)
    with running([ListedBatches(7).of], 2, follower=follower, lookahead=lookahead) as job:
        clients = job.joined()
        for epoch in range(3):
            examples = [[part.examples for part in parts] for parts in epochs(clients, epoch)]
            equal = lookahead if epoch == 0 else 0  # batches that had arrived at the first look
            assert examples == [[3] * equal + [part] * (7 - equal) for part in (2, 4)]


def test_joining_says_where_the_servers_are() -> None:
    with running([ListedBatches(2).of], 1, lookahead=None) as job:
        joined = job.client(0).join(description())
        assert len(joined.servers) == 1
        assert (joined.lookahead, joined.prefetch) == (None, 2)
        with pytest.raises(EmbeddingError, match="trainer 0 has joined already: a job has one"):
            job.client(0).join(description())
        with pytest.raises(EmbeddingError, match="trainer 1 of 1 cannot join"):
            job.client(1).join(description())


def test_trainers_of_different_models_are_refused() -> None:
    with running([ListedBatches(2).of], 2) as job:
        errors = failures(
            [
                lambda: job.client(0).join(description()),
                lambda: job.client(1).join(description(seed=1)),
            ]
        )
        for error in errors:
            assert isinstance(error, EmbeddingError)
            assert re.match(r"trainers \d and \d differ in seed of the job", str(error))


def test_a_trainer_waits_for_the_others_up_to_its_deadline() -> None:
    with running([ListedBatches(2).of], 3) as job:
        with pytest.raises(CommunicationError, match=r"cacher, join: .*(within|deadline)"):
            job.client(1, deadline_s=STALL_S / 3).join(description())
        # Another process may join in its place.
        assert len(job.joined()) == 3


def test_a_server_that_does_not_start_is_an_error_at_all_trainers() -> None:
    with running([ListedBatches(2).of], 2, Servers("no room for rows")) as job:
        for error in failures(
            [lambda client=client: client.join(description()) for client in clients_of(job)]
        ):
            assert "server 0, start: MemoryError: no room for rows" in str(error)


def clients_of(job: RunningJob) -> list[CacherClient]:
    return [job.client(trainer) for trainer in range(job.trainers)]


def failures(actions: list[Callable[[], Any]]) -> list[Exception]:
    """Return the error of each of some actions that run at once."""

    def error_of(action: Callable[[], Any]) -> Exception:
        with pytest.raises(HeadraceError) as caught:
            action()
        return caught.value

    return at_once([lambda action=action: error_of(action) for action in actions])


def test_servers_open_a_commit_before_trainers_join(tmp_path: Path) -> None:
    """They did so afterwards, while all trainers waited."""
    folder = CommitFolder(tmp_path)
    folder.write(mark_of(description(), folder.begin(), 0))
    servers = Servers()
    with running([ListedBatches(9).of], 2, servers, folder=str(tmp_path)) as job, no_hang():
        wait_until(lambda: servers.started, "servers have started")
        (start,) = servers.started
        assert (start["start"], start["first_commit"]) == (2, 1)
        clients = clients_of(job)
        slots = description(slots=(40, 9))  # which a job may change
        at_once([lambda client=client: client.join(slots) for client in clients])
    assert len(servers.started) == 1


def test_a_commit_that_an_earlier_start_marks_last_is_begun_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One between the reading of marks and the new start was lost, though trainers had gone on."""
    folder = CommitFolder(tmp_path)
    earlier = folder.begin()

    def begin(self: CommitFolder, begun: Callable[..., int] = CommitFolder.begin) -> int:
        folder.write(mark_of(description(), earlier, 0))
        return begun(self)

    monkeypatch.setattr(CommitFolder, "begin", begin)
    servers = Servers()
    with running([ListedBatches(9).of], 1, servers, folder=str(tmp_path)) as job:
        job.joined()
    (start,) = servers.started
    assert (start["start"], start["first_commit"]) == (2, 1)


def test_a_wrong_line_is_an_error_at_all_trainers(tmp_path: Path) -> None:
    path = tmp_path / "clicks.tsv"
    path.write_text("\n".join([LINE] * 21 + ["no example"] + [LINE] * 30))
    tables = tuple(
        EmbeddingTable(name=str(number), rows=0, dim=2, initial=InitialValues(scale=1.0))
        for number in range(HASHES)
    )
    job_description = description(
        tables=tables,
        columns=tuple((number,) for number in range(HASHES)),
        groups=table_groups(tables),
        slots=(1000,),
        data=CriteoData.of([path], batch=4).to_fields(),
    )
    with running([FileBatches.of] * 2, 2, lookahead=2) as job, no_hang():
        clients = clients_of(job)
        at_once([lambda client=client: client.join(job_description) for client in clients])
        errors = failures([lambda client=client: taken(client.epoch(0)) for client in clients])
        for error in errors:
            assert isinstance(error, EmbeddingError)
            assert str(error).startswith(f"{path}: line 22: has 1 columns, needs 40")


def test_an_id_outside_its_table_is_an_error_at_all_trainers() -> None:
    tables = (TABLES[0], EmbeddingTable(name="shops", rows=3, dim=2))
    with running([ListedBatches(7).of], 2) as job, no_hang():
        clients = clients_of(job)
        small = description(tables=tables, groups=table_groups(tables))

        def train(client: CacherClient) -> None:
            client.join(small)  # fails too, where a batch is decided before its reply
            taken(client.epoch(0))

        for error in failures([lambda client=client: train(client) for client in clients]):
            assert isinstance(error, EmbeddingError)
            assert re.search(r"batch \d, example \d: table shops: id \d, needs 0 to 2", str(error))


def test_an_id_outside_its_table_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "clicks.tsv"
    wrong = LINE.rpartition("\t")[0] + "\t00000032"
    path.write_text("\n".join([LINE] * 9 + ["no example"] + [LINE, wrong, LINE]))
    tables = tuple(EmbeddingTable(name=f"t{number}", rows=50, dim=2) for number in range(HASHES))
    job_description = description(
        tables=tables,
        columns=tuple((number,) for number in range(HASHES)),
        groups=table_groups(tables),
        slots=(1000,),
        data=CriteoData.of([path], batch=4, most_rejected=1.0).to_fields(),
    )
    with running([FileBatches.of], 1, lookahead=2) as job, no_hang():
        (client,) = clients_of(job)

        def train() -> None:
            client.join(job_description)  # fails too, as above
            taken(client.epoch(0))

        (error,) = failures([train])
    assert str(error) == (
        f"{path}: line 12: table t25: id 50, needs 0 to 49: give the table more rows, or the data "
        "smaller ids"
    )


def test_a_batch_that_does_not_fit_says_how_large_the_cache_has_to_be() -> None:
    with running([ListedBatches(7).of], 1) as job, no_hang():
        (client,) = clients_of(job)

        def train() -> None:
            client.join(description(slots=(50, 2)))  # fails too, as above
            taken(client.epoch(0))

        (error,) = failures([train])
        assert re.search(
            r"^batch 0 has (\d) distinct rows of shops, more than the 2 that a trainer's cache has "
            r"room for: needs a cache of \d+ B or more, or smaller batches$",
            str(error),
        )


def test_data_without_examples_are_an_error() -> None:
    with running([ListedBatches(0).of], 1) as job, no_hang():
        (client,) = job.joined()
        with pytest.raises(EmbeddingError, match="the data have no batch in epoch 0"):
            next(client.epoch(0))


def test_an_error_of_a_later_epoch_leaves_the_one_before_as_it_is() -> None:
    class OneEpoch(ListedBatches):
        def batches(self, epoch: int, part: Any) -> Any:
            assert epoch == 0, "can be iterated once"
            return super().batches(epoch, part)

    with running([OneEpoch(3).of], 1) as job, no_hang():
        (client,) = job.joined()
        stream = client.epoch(0)
        assert len(taken(stream)) == 3
        with pytest.raises(CommunicationError, match=r"reader 0, next: .*can be iterated once"):
            next(client.epoch(1))


def test_a_reader_that_ends_is_named_to_all_trainers() -> None:
    reached = threading.Event()

    def before(batch: int) -> None:
        if batch == 5:
            reached.set()
            threading.Event().wait()  # as long as the process lives

    with running([ListedBatches(9, before).of], 2) as job, no_hang():
        clients = job.joined()
        waiting = threading.Thread(target=lambda: (reached.wait(), job.readers[0].close()))
        waiting.start()
        for error in failures([lambda client=client: taken(client.epoch(0)) for client in clients]):
            assert isinstance(error, CommunicationError)
            assert "reader 0, next" in str(error)
        waiting.join()


@pytest.mark.parametrize("stopped", [False, True])
def test_another_process_of_a_reader_goes_on_where_one_was_lost(stopped: bool) -> None:
    """A process that is stopped leaves a call without an answer; one that was killed ends it."""
    goes_on = threading.Event()

    def before(batch: int) -> None:
        if stopped and batch == 12:
            goes_on.wait()

    source = ListedBatches(40, before)
    with running([source.of] * 2, 2, readers_restart=True) as job, no_hang():
        clients = job.joined()
        streams = [client.epoch(0) for client in clients]
        parts = at_once([lambda stream=stream: taken(stream, 5) for stream in streams])
        if stopped:
            # its calls fail, as those of a process that was killed then
            job.cacher._report_silence(["reader 0"], [])  # pyright: ignore[reportPrivateUsage]
        else:
            idle(job.readers[0])
            job.readers[0].close()
        source.before = lambda _batch: None
        job.let_attend(0, job.reader(0))
        rest = at_once([lambda stream=stream: taken(stream) for stream in streams])
        expected = [
            *dispatched(
                id_batches(40),
                CacherOptions(
                    tables=TABLES,
                    groups=table_groups(TABLES),
                    slots=(50, 9),
                    trainers=2,
                    lookahead=3,
                    prefetch=2,
                ),
            )
        ]
        for trainer in range(2):
            received = [*parts[trainer], *rest[trainer]]
            assert len(received) == 40
            for part, reference in zip(received, expected, strict=True):
                assert_same(part, reference[trainer])
        goes_on.set()


def idle(reader: ReaderServer) -> None:
    """Wait until the cacher has no call of a reader that waits."""
    passes = reader._pass  # pyright: ignore[reportPrivateUsage]
    assert passes is not None
    messages = passes._messages  # pyright: ignore[reportPrivateUsage]
    wait_until(lambda: len(messages) == AHEAD, "the reader is ahead of the cacher")


def test_a_trainer_that_leaves_is_named_to_the_others() -> None:
    with running([ListedBatches(20).of], 3) as job, no_hang():
        clients = job.joined()

        def leave() -> None:
            stream = clients[1].epoch(0)
            assert len(taken(stream, 4)) == 4
            stream.close()
            with pytest.raises(CommunicationError, match="the stream was closed"):
                next(stream)

        def stay(client: CacherClient) -> None:
            with pytest.raises(CommunicationError, match="trainer 1 left before batch [456]"):
                taken(client.epoch(0))

        at_once([lambda: stay(clients[0]), leave, lambda: stay(clients[2])])


def test_a_trainer_that_ends_before_it_joins_is_named_to_those_that_wait() -> None:
    with running([ListedBatches(2).of], 2) as job, no_hang():
        client = job.client(0)

        def end() -> None:
            joined = job.cacher._joined  # pyright: ignore[reportPrivateUsage]
            wait_until(lambda: joined, "a trainer waits for the other")
            job.cacher.trainer_ended(1)

        def join() -> None:
            with pytest.raises(EmbeddingError, match=r"trainer 1 ended without a call of .*\.fit,"):
                client.join(description())

        at_once([join, end])


def test_a_trainer_that_ends_after_it_joined_is_no_failure() -> None:
    with running([ListedBatches(2).of], 2) as job, no_hang():
        clients = job.joined()
        job.cacher.trainer_ended(1)
        at_once([lambda client=client: taken(client.epoch(0)) for client in clients])


def test_a_trainer_whose_connection_ends_is_named_to_the_others() -> None:
    """Without a word to the cacher, while neither trainer asks for anything."""
    with running([ListedBatches(500).of], 2) as job, no_hang():
        clients = job.joined()
        stream = clients[0].epoch(0)
        at_once([lambda: taken(stream, 4), lambda: taken(clients[1].epoch(0), 4)])
        clients[1]._pulse.close()  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
        with pytest.raises(CommunicationError, match="trainer 1 left before .* connection ended"):
            taken(stream)


def test_a_commit_ends_for_all_when_a_trainer_is_gone() -> None:
    """Those that wait for it are told at once, and those that come later."""
    fields = {"commit": 0, "epoch": 0, "epoch_began": 0, "batch": 4, "steps": 4, "groups": [[]]}
    with running([ListedBatches(20).of], 3) as job, no_hang():
        clients = job.joined()

        def told(client: CacherClient) -> None:
            with pytest.raises(CommunicationError, match="commit 0 is not made: trainer 1 left"):
                client.commit(fields)

        def leave() -> None:
            commits = job.cacher._commits  # pyright: ignore[reportPrivateUsage]
            wait_until(lambda: commits.under_way, "a trainer waits in a commit")
            clients[1].close()

        at_once([lambda: told(clients[0]), leave])
        told(clients[2])


def test_a_data_file_that_changes_before_a_commit_has_changed_since(tmp_path: Path) -> None:
    """The mark had it as it was then, and a job that began there read other batches behind it."""
    path, folder = tmp_path / "data.tsv", tmp_path / "state"
    path.write_text("0\n")
    job_description = description(data={"paths": [str(path)], "batch": 4})
    fields = {"commit": 0, "epoch": 0, "epoch_began": 0, "batch": 4, "steps": 4, "groups": [[]]}
    with running([ListedBatches(20).of], 1, folder=str(folder)) as job, no_hang():
        client = job.client(0)
        client.join(job_description)
        path.write_text("0\n1\n")
        client.commit(fields)
        assert job.cacher.status()["batch"] == 4
    mark = CommitFolder(folder).newest()
    assert mark is not None
    with pytest.raises(EmbeddingError, match=r"data\.tsv: has changed since commit 0"):
        mark.check(job_description)


def test_trainers_need_all_batches_of_an_epoch() -> None:
    with running([ListedBatches(7).of], 2) as job, no_hang():
        clients = job.joined()
        streams = [client.epoch(0) for client in clients]
        at_once([lambda stream=stream: taken(stream, 3) for stream in streams])
        with pytest.raises(EmbeddingError, match="epoch 1 begins before the last batch"):
            clients[0].epoch(1)


def test_batches_wait_for_the_slowest_trainer() -> None:
    """A bounded number of batches is read while a trainer takes none, however many follow."""
    read: list[int] = []
    with running([ListedBatches(120, read.append).of], 2) as job, no_hang():
        clients = job.joined()
        fast, slow = (client.epoch(0) for client in clients)
        ahead = taken(fast, 4)
        assert [part.batch for part in ahead] == [0, 1, 2, 3]

        def unchanged() -> bool:
            before = len(read)
            threading.Event().wait(STALL_S / 10)
            return len(read) == before

        wait_until(unchanged, "readers go on")
        # decided, in the window, pulled, parsed; and the batch that waits for room in each
        assert len(read) <= 4 + 3 + 2 + 4 + 4
        at_once([lambda: taken(slow), lambda: taken(fast)])
        assert read[:120] == [*range(120)]
