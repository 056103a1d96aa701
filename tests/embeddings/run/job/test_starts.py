"""A job that begins again while processes of an earlier start live: these change nothing of it."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.embeddings import EmbeddingTable, TableGroup
from headrace.embeddings.run.batches import SlottedRows
from headrace.embeddings.run.servers.row_client import (
    ServerConnections,
    mark_servers,
    start_servers,
)
from headrace.embeddings.run.servers.row_logs import ServerFolder
from headrace.embeddings.tables import table_groups
from headrace.errors import CommunicationError
from tests.embeddings.run.row_servers import RunningServers, describe, settings
from tests.embeddings.run.rpc_peer import SECRET
from tests.waiting import HANG_S

TABLES = (EmbeddingTable(name="items", rows=100, dim=2),)
GROUPS: tuple[TableGroup, ...] = table_groups(TABLES)
IDS = np.arange(40)


class EarlierServer:
    """A server of the first start of a job, in a process, and its trainer."""

    def __init__(
        self, folder: Path, ends: ExitStack, tables: Sequence[EmbeddingTable] = TABLES
    ) -> None:
        job = describe(tables, table_groups(tables))
        self.process = ends.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "headrace.embeddings.run.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        ends.callback(self.process.kill)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        message = settings(0, 1, folder=str(folder)).to_message()
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        self.address: str = json.loads(self.process.stdout.readline())["address"]
        start_servers([self.address], job, 1, role="cacher", secret=SECRET, start=1)
        self.trainer = ends.enter_context(
            ServerConnections([self.address], job, 0, secret=SECRET, deadline_s=HANG_S)
        )

    def commit(self, commit: int, number: float) -> ServerFolder:
        """Write a number to all rows, in a commit that is marked."""
        written = write_and_commit(self.trainer, commit, number)
        mark_servers([self.address], commit, role="cacher", secret=SECRET)
        return ServerFolder(start=1, server=0, servers=1, groups=written["groups"][0])


def write_and_commit(trainer: ServerConnections, commit: int, number: float) -> Any:
    values = np.full((len(IDS), GROUPS[0].width), number, GROUPS[0].dtype)
    rows = SlottedRows(
        ids=IDS, ends=np.array([len(IDS)]), slots=np.arange(len(IDS), dtype=np.uint32)
    )
    trainer.write_back(commit, 0, rows, values, commit=commit)
    return trainer.commit(commit, [])


def numbers(servers: RunningServers) -> set[float]:
    return {float(number) for row in servers.rows.values() for number in row}


def begun(
    folder: Path, start: int, committed: ServerFolder, commit: int, servers: int = 1
) -> RunningServers:
    begin = {
        "start": start,
        "committed": [committed],
        "first_commit": commit,
        "first_batch": commit,
    }
    return RunningServers(TABLES, GROUPS, 1, servers=servers, begin=begin, folder=str(folder))


@pytest.mark.parametrize("later_servers", [1, 2])
def test_a_stopped_server_that_goes_on_changes_nothing_of_a_later_start(
    tmp_path: Path, later_servers: int
) -> None:
    with ExitStack() as ends:
        earlier = EarlierServer(tmp_path, ends)
        earlier.commit(0, 1.0)
        committed = earlier.commit(1, 2.0)
        write_and_commit(earlier.trainer, 2, 3.0)  # it is not marked
        earlier.process.send_signal(signal.SIGSTOP)
        with begun(tmp_path, 2, committed, 2, later_servers) as servers:
            assert numbers(servers) == {2.0}
            earlier.process.send_signal(signal.SIGCONT)
            earlier.commit(3, 4.0)
            assert numbers(servers) == {2.0}
            folders: list[ServerFolder] = []
            with servers.connection(0) as trainer:
                write_and_commit(trainer, 2, 5.0)
                folders = servers.committed[2]
            earlier.commit(4, 6.0)
        begin = {"start": 3, "committed": folders, "first_commit": 3, "first_batch": 3}
        with RunningServers(
            TABLES, GROUPS, 1, servers=later_servers, begin=begin, folder=str(tmp_path)
        ) as servers:
            assert numbers(servers) == {5.0}
        earlier.commit(5, 7.0)


def test_a_trainer_of_an_earlier_start_is_refused(tmp_path: Path) -> None:
    with ExitStack() as ends:
        committed = EarlierServer(tmp_path, ends).commit(0, 1.0)
        with begun(tmp_path, 2, committed, 1) as servers:
            earlier = ends.enter_context(
                ServerConnections(
                    servers.addresses,
                    servers.description,
                    0,
                    secret="of the earlier start",
                    deadline_s=HANG_S,
                )
            )
            with pytest.raises(CommunicationError, match="the secret is not that of this job"):
                write_and_commit(earlier, 1, 2.0)
            assert numbers(servers) == {1.0}
