"""A trainer of rows that are numbers of commits: each commit gives all rows the next one.

Of a trainer's rows one half is evicted, and the other one stays in its cache, in turns. Its next
rows are written back before a commit is made, as a job's are.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import nn

from headrace.embeddings.run.batches import SlottedRows
from headrace.embeddings.run.servers.row_client import DirtyRows, ServerConnections
from headrace.embeddings.run.trainers.cacher_client import CacherClient
from headrace.embeddings.run.trainers.committer import Committer, Position
from headrace.embeddings.run.trainers.connections import JobCommits
from headrace.embeddings.run.trainers.synchronise import RowCommit
from headrace.embeddings.run.trainers.trainer_state import TrainerState
from tests.embeddings.run.jobs import SECRET, TABLES, description
from tests.waiting import ENDLESS_S

TRAINERS = 2
GROUPS = description().groups


def train(
    cacher: str, trainer: int, end: int, made: Callable[[int], None] = lambda _commit: None
) -> None:
    """Check what the job begins with, and make commits up to one.

    Parameters
    ----------
    cacher : its address.
    end : number behind the last commit.
    made : called with every commit that is made.

    Raises
    ------
    AssertionError : a row or the dense part is not that of the commit that the job begins from.
    CommunicationError : a process failed.
    """
    with ExitStack() as ends:
        client = ends.enter_context(
            CacherClient(
                cacher, trainer=trainer, trainers=TRAINERS, secret=SECRET, deadline_s=ENDLESS_S
            )
        )
        job = client.join(description())
        assert job.folder is not None
        commits = JobCommits(
            folder=job.folder, start=job.start, mark=job.mark, report=client.commit
        )
        model = nn.Linear(1, 1, bias=False)
        model.weight.data.fill_(0.0)
        state = TrainerState(model, [torch.optim.SGD(model.parameters(), lr=1.0)], {})
        committer = Committer(commits, state, trainer)
        ends.callback(committer.close)
        committer.restore()
        first = committer.beginning.commit
        assert model.weight.item() == first, (model.weight.item(), first)
        servers = ends.enter_context(
            ServerConnections(
                job.servers, description(), trainer, secret=SECRET, deadline_s=ENDLESS_S
            )
        )
        check(servers, trainer, first)
        thread = ends.enter_context(ThreadPoolExecutor(1))
        for commit in range(first, end):
            model.weight.data.fill_(commit + 1)
            dirty = write(servers, trainer, commit)
            logged: Future[Any] = thread.submit(servers.commit, commit, dirty)
            position = Position(epoch=0, epoch_began=0, batch=commit + 1, steps=commit + 1)
            committer.begin(RowCommit(number=commit, batch=commit, servers=logged), position)
            if commit > first:
                made(commit - 1)
        committer.finish()
        made(end - 1)


def own_rows(trainer: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of a trainer's rows of a group, and where those of each table end."""
    ids = [np.arange(trainer, TABLES[table].rows, TRAINERS) for table in GROUPS[group].tables]
    return np.concatenate(ids), np.cumsum([len(of_table) for of_table in ids])


def check(servers: ServerConnections, trainer: int, commit: int) -> None:
    """Check that a trainer's rows are those before a commit."""
    for number in range(len(GROUPS) if commit else 0):
        ids, ends = own_rows(trainer, number)
        values = servers.read(number, ids, ends)
        assert np.array_equal(values, np.full_like(values, commit)), (number, commit, values)


def write(servers: ServerConnections, trainer: int, commit: int) -> list[DirtyRows]:
    """Write half of a trainer's rows back; return the other one."""
    dirty: list[DirtyRows] = []
    for number, group in enumerate(GROUPS):
        ids, ends = own_rows(trainer, number)
        halves: list[DirtyRows] = []
        for half in range(2):
            chosen = (ids // TRAINERS + commit) % 2 == half
            rows = SlottedRows(
                ids=ids[chosen],
                ends=np.array([np.count_nonzero(chosen[:end]) for end in ends]),
                slots=np.arange(np.count_nonzero(chosen), dtype=np.uint32),
            )
            values = np.full((len(rows.ids), group.width), commit + 1, group.dtype)
            halves.append(DirtyRows(rows=rows, values=values))
        servers.write_back(commit, number, halves[0].rows, halves[0].values, commit=commit)
        dirty.append(halves[1])
    return dirty
