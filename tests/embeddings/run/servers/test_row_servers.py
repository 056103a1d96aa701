"""Servers of rows and connections to them: one suite for those in memory and real ones."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.embeddings import EmbeddingError, EmbeddingTable, InitialValues
from headrace.embeddings.run.batches import SlottedRows
from headrace.embeddings.run.servers import row_server
from headrace.embeddings.run.servers.row_client import ServerConnections, start_servers
from headrace.embeddings.tables import TableGroup, table_groups
from headrace.errors import CommunicationError
from headrace.settings import child_environment
from tests.embeddings.run.memory_servers import MemoryServers
from tests.embeddings.run.row_servers import RunningServers, describe, settings
from tests.embeddings.run.rpc_peer import SECRET
from tests.layering_test import loaded_by
from tests.waiting import HANG_S, no_hang, wait_until

TABLES = (
    EmbeddingTable(name="dense", rows=50, dim=3),
    EmbeddingTable(name="wide", rows=0, dim=5, initial=InitialValues(scale=1.0)),
    EmbeddingTable(
        name="hashed", rows=0, dim=3, initial=InitialValues(distribution="constant", scale=2.0)
    ),
)
GROUPS = table_groups(TABLES, state_per_row=1, state_initial=0.5, dtype="float64")
TRAINERS = 2


def rows_of(group: TableGroup, ids: list[list[int]]) -> tuple[SlottedRows, np.ndarray]:
    """Return rows of a group's tables by their ids, and values for them."""
    rows = SlottedRows(
        ends=np.cumsum([len(of_table) for of_table in ids]),
        ids=np.array([row for of_table in ids for row in of_table], np.int64),
        slots=np.zeros(sum(map(len, ids)), np.uint32),
    )
    values = np.random.default_rng(len(rows.ids)).random((len(rows.ids), group.width))
    return rows, values.astype(group.dtype)


ROWS, VALUES = rows_of(GROUPS[0], [[49, 0, 7, 8, 9], [1 << 62, 3, 0, 77]])
NO_ROWS, NO_VALUES = rows_of(GROUPS[0], [[], []])

Servers = MemoryServers | RunningServers


@pytest.fixture(params=["in memory", "one", "three"])
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    if request.param == "in memory":
        yield MemoryServers(GROUPS, TRAINERS)
        return
    count = 1 if request.param == "one" else 3
    with RunningServers(TABLES, GROUPS, TRAINERS, servers=count) as running:
        yield running


@pytest.fixture
def running() -> Iterator[RunningServers]:
    with RunningServers(TABLES, GROUPS, TRAINERS, servers=3) as running:
        yield running


def test_rows_are_fetched_as_they_were_written_in_their_order(servers: Servers) -> None:
    writer, reader = servers.connection(0), servers.connection(1)
    writer.write_back(0, 0, ROWS, VALUES)
    reader.write_back(0, 0, NO_ROWS, NO_VALUES)
    assert np.array_equal(reader.fetch(1, 0, 0, ROWS), VALUES)
    backwards = SlottedRows(ends=ROWS.ends, ids=ROWS.ids.copy(), slots=ROWS.slots)
    backwards.ids[:5] = ROWS.ids[4::-1]
    fetched = reader.fetch(1, 0, 0, backwards)
    assert np.array_equal(fetched[:5], VALUES[4::-1])
    assert np.array_equal(fetched[5:], VALUES[5:])
    wide, values = rows_of(GROUPS[1], [[5, 4, 3, 2, 1, 0]])
    writer.write_back(0, 1, wide, values)
    reader.write_back(0, 1, *rows_of(GROUPS[1], [[]]))
    assert np.array_equal(writer.fetch(1, 1, 0, wide), values)


def test_new_rows_are_the_same_to_all(servers: Servers) -> None:
    first = servers.connection(0).fetch(0, 0, -1, ROWS)
    assert np.array_equal(servers.connection(1).fetch(0, 0, -1, ROWS), first)
    assert np.all(first[:, -1] == 0.5)


def test_many_rows_arrive_in_their_order(running: RunningServers) -> None:
    """They are fetched by several calls of each server."""
    random = np.random.default_rng(1)
    ids = np.concatenate([random.integers(0, 50, 3000), random.permutation(300_000)])
    rows = SlottedRows(ends=np.array([3000, len(ids)]), ids=ids, slots=np.zeros(0, np.uint32))
    values = random.random((len(ids), GROUPS[0].width))
    values[:3000] = rows.ids[:3000, None]  # of equal ids the values are equal
    connections = [running.connection(trainer) for trainer in range(TRAINERS)]
    connections[0].write_back(0, 0, rows, values)
    connections[1].write_back(0, 0, NO_ROWS, NO_VALUES)
    assert np.array_equal(connections[1].fetch(1, 0, 0, rows), values)


def test_a_fetch_waits_for_the_write_backs_of_all_trainers(servers: Servers) -> None:
    connections = [servers.connection(trainer) for trainer in range(TRAINERS)]
    with no_hang(), ThreadPoolExecutor(1) as thread:
        fetch = thread.submit(connections[0].fetch, 2, 0, 1, ROWS)
        for batch in range(2):
            connections[0].write_back(batch, 0, NO_ROWS, NO_VALUES)
            assert not fetch.done()
            # of another group: they do not count
            connections[1].write_back(batch, 1, *rows_of(GROUPS[1], [[]]))
        connections[1].write_back(0, 0, NO_ROWS, NO_VALUES)
        assert not fetch.done()
        connections[1].write_back(1, 0, ROWS, VALUES)
        assert np.array_equal(fetch.result(HANG_S), VALUES)


def test_closing_ends_a_fetch_that_waits(servers: Servers) -> None:
    connection = servers.connection(0)
    with no_hang(), ThreadPoolExecutor(1) as thread:
        fetch = thread.submit(connection.fetch, 2, 0, 1, ROWS)
        assert not fetch.done()
        connection.close()
        with pytest.raises(CommunicationError, match="server"):
            fetch.result(HANG_S)


def test_write_backs_out_of_order_are_refused(running: RunningServers) -> None:
    connection = running.connection(1)
    connection.write_back(0, 0, ROWS, VALUES)
    for batch in (0, 2):
        message = f"trainer 1 writes rows of batch {batch} back, needs batch 1"
        with pytest.raises(EmbeddingError, match=message):
            connection.write_back(batch, 0, ROWS, 2 * VALUES)
    assert np.array_equal(connection.read(0, ROWS.ids, ROWS.ends), VALUES)
    connection.write_back(1, 0, ROWS, 2 * VALUES)


def test_ids_outside_their_table_are_refused_by_name(running: RunningServers) -> None:
    connection = running.connection(0)
    rows, values = rows_of(GROUPS[0], [[3, 50], []])
    many, many_values = rows_of(GROUPS[0], [[*range(50)], [*range(200_000), -1]])
    with pytest.raises(EmbeddingError, match="table hashed: id is -1, needs 0 to 9223372036854"):
        connection.write_back(0, 0, many, many_values)
    assert all(status["rows"] == 0 for status in connection.status())
    with pytest.raises(EmbeddingError, match="table dense: id is 50, needs 0 to 49"):
        connection.fetch(0, 0, -1, rows)
    with pytest.raises(EmbeddingError, match="table dense: id is 50, needs 0 to 49"):
        connection.load(0, rows.ids, values)
    with pytest.raises(EmbeddingError, match="table of a call is 3, needs a number, 0 to 2"):
        connection.export(3, -1, 10)
    assert all(status["rows"] <= 1 for status in connection.status())


def test_evaluation_creates_no_rows_and_export_lists_all(running: RunningServers) -> None:
    connection = running.connection(0)
    expected = connection.read(0, ROWS.ids, ROWS.ends)
    assert all(status["rows"] == 0 for status in connection.status())
    assert np.all(expected[5:, :3] == 2.0)
    assert np.array_equal(connection.fetch(0, 0, -1, ROWS), expected)
    ids = np.array([9, 5, 1 << 61, 30, 31, 32, 7])
    connection.load(1, ids, np.arange(35.0).reshape(7, 5))
    expected_values = np.full((7, 6), 0.5)
    expected_values[:, :5] = np.arange(35.0).reshape(7, 5)
    order = np.argsort(ids)
    listed, values = connection.export(1, -1, 100)
    assert np.array_equal(listed, ids[order])
    assert np.array_equal(values, expected_values[order])
    after = int(listed[2])
    listed, values = connection.export(1, after, 2)
    assert np.array_equal(listed, ids[order][3:5])
    assert np.array_equal(values, expected_values[order][3:5])
    statuses = connection.status()
    tables = [status["tables"] for status in statuses]
    assert [table["name"] for table in tables[0]] == ["dense", "wide", "hashed"]
    assert [sum(own[table]["rows"] for own in tables) for table in range(3)] == [5, 7, 4]
    assert all(status["bytes"] > 0 for status in statuses)
    counts = [status["times"] for status in statuses]
    assert sum(of_server["fetched_rows"] for of_server in counts) == len(ROWS.ids)
    assert sum(of_server["written_rows"] for of_server in counts) == 0
    connection.write_back(0, 0, ROWS, VALUES)
    counts = [status["times"] for status in connection.status()]
    assert sum(of_server["written_rows"] for of_server in counts) == len(ROWS.ids)


@pytest.mark.parametrize("spread", [3000, 100_000, 1 << 60])
def test_pages_of_an_export_follow_one_another(running: RunningServers, spread: int) -> None:
    random = np.random.default_rng(spread)
    ids = np.unique(random.integers(0, spread, 3000))
    values = random.random((len(ids), 6))
    connection = running.connection(0)
    connection.load(1, ids, values)
    for limit in (1, 700, len(ids), 5000):
        pages: list[np.ndarray] = []
        after = -1
        while True:
            listed, own = connection.export(1, after, limit)
            pages.append(listed)
            assert np.array_equal(own, values[np.searchsorted(ids, listed)])
            if len(listed) < limit or limit == 1:
                break
            after = int(listed[-1])
        assert np.array_equal(np.concatenate(pages), ids[:1] if limit == 1 else ids)


def test_a_job_starts_once(running: RunningServers) -> None:
    running.start(running.description)
    other = replace(running.description, seed=4)
    with pytest.raises(EmbeddingError, match=r"server \d serves another job, whose seed differ"):
        running.start(other)
    with pytest.raises(EmbeddingError, match="whose trainers differ"):
        running.start(running.description, trainers=5)
    with pytest.raises(EmbeddingError, match=r"server \d of 3 was started as server \d of 3"):
        start_servers(
            running.addresses[::-1], running.description, TRAINERS, role="cacher", secret=SECRET
        )


def test_a_server_without_memory_is_named_and_goes_on() -> None:
    with RunningServers(TABLES, GROUPS, 1, servers=1, most_bytes=3 << 20) as running:
        connection = running.connection(0)
        first, values = rows_of(GROUPS[0], [[], list(range(10))])
        connection.fetch(0, 0, -1, first)
        rows, _ = rows_of(GROUPS[0], [[], list(range(100_000))])
        with pytest.raises(
            CommunicationError,
            match="server 0, fetch: MemoryError: embedding rows .*: let servers on more hosts",
        ):
            connection.fetch(0, 0, -1, rows)
        connection.write_back(0, 0, first, values)
        assert np.array_equal(connection.fetch(1, 0, 0, first), values)


@pytest.mark.parametrize("of_host", [1, 4])
def test_servers_of_one_host_have_equal_parts_of_its_memory(
    of_host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two had 90% of it each, and were ended by the kernel in place of an error."""
    monkeypatch.setattr(row_server, "available_host_bytes", lambda: 12 << 20)
    rows, _ = rows_of(GROUPS[0], [[], list(range(100_000))])  # 4 MB
    with RunningServers(TABLES, GROUPS, 1, servers=1, of_host=of_host) as running:
        context = nullcontext()
        if of_host > 1:
            context = pytest.raises(CommunicationError, match="MemoryError: embedding rows")
        with context:
            running.connection(0).fetch(0, 0, -1, rows)


def test_copies_of_a_commit_are_on_the_device_where_the_system_has_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark of the next commit names them, and removes what they are copies of."""
    folder, synced = str(tmp_path), set[int]()
    with RunningServers(TABLES, GROUPS, 1, begin={"start": 1}, folder=folder) as running:
        running.connection(0).write_back(0, 0, ROWS, VALUES)
        running.connection(0).commit(0, [])
        rows, committed = running.rows, running.committed[0]

    def no_link(_source: Path, _target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def sync(descriptor: int, fsync: Callable[[int], None] = os.fsync) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(os, "fsync", sync)
    begin = {"start": 2, "committed": committed, "first_commit": 1, "first_batch": 1}
    with RunningServers(TABLES, GROUPS, 1, begin=begin, folder=folder) as running:
        assert running.rows.keys() == rows.keys()
        assert all(np.array_equal(running.rows[place], row) for place, row in rows.items())
    copies = [
        tmp_path / "start-2" / path.relative_to(tmp_path / "start-1")
        for path in (tmp_path / "start-1").rglob("changes-*")
    ]
    assert len(copies) == len(TABLES)
    assert synced.issuperset(path.stat().st_ino for path in copies)


def test_a_server_that_is_closed_is_named_while_the_others_wait(running: RunningServers) -> None:
    connection = running.connection(0)
    with no_hang(), ThreadPoolExecutor(1) as thread:
        fetch = thread.submit(connection.fetch, 2, 0, 1, ROWS)
        assert not fetch.done()
        running.served[1].close()
        with pytest.raises(CommunicationError, match="server 1, fetch"):
            fetch.result(HANG_S)


def test_a_process_that_dies_is_named() -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "headrace.embeddings.run.process"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(2)
        ]
        for process in processes:
            stack.callback(process.kill)
        addresses: list[str] = []
        for number, process in enumerate(processes):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(settings(number, 2).to_message()) + "\n")
            process.stdin.flush()
            addresses.append(json.loads(process.stdout.readline())["address"])
        description = describe(TABLES, GROUPS)
        start_servers(addresses, description, 1, role="cacher", secret=SECRET)
        connection = stack.enter_context(
            ServerConnections(addresses, description, 0, secret=SECRET, deadline_s=HANG_S)
        )
        connection.write_back(0, 0, ROWS, VALUES)
        assert np.array_equal(connection.fetch(1, 0, 0, ROWS), VALUES)
        failed = threading.Event()

        def fetch() -> None:
            with pytest.raises(CommunicationError, match="server 1, fetch"):
                connection.fetch(2, 0, 1, ROWS)
            failed.set()

        thread = threading.Thread(target=fetch)
        thread.start()
        processes[1].kill()
        wait_until(failed.is_set, "the fetch ends with the server")
        thread.join()


ENDING = """
import sys
import threading
from tests.embeddings.run.servers.test_row_servers import *
from tests.waiting import ENDLESS_S

servers = ServerConnections(
    sys.argv[1:], describe(TABLES, GROUPS), 0, secret=SECRET, deadline_s=ENDLESS_S
)
threading.Thread(target=servers.fetch, args=(5, 0, 3, ROWS), daemon=True).start()
wait_until(lambda: all(client.calls for client in servers._fetches._clients), "no calls")
raise RuntimeError("the script failed")
"""


def test_a_process_ends_while_its_fetches_wait_for_what_it_would_write(
    running: RunningServers,
) -> None:
    """A script that failed in an epoch ended at the deadline: it waited for threads of calls."""
    process = subprocess.run(
        [sys.executable, "-c", ENDING, *running.addresses],
        env=child_environment({"PYTHONPATH": str(Path.cwd())}),
        stderr=subprocess.PIPE,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert process.returncode == 1
    assert "RuntimeError: the script failed" in process.stderr


def test_neither_side_loads_torch() -> None:
    modules = loaded_by(
        "import headrace.embeddings.run.servers.row_server",
        "import headrace.embeddings.run.servers.row_client",
    )
    assert "torch" not in modules
