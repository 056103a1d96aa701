"""One trainer's connections with the processes of its job."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.run.commits import CommitFolder, Mark
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.servers.interface import RowServers, RowValues
from headrace.embeddings.run.trainers.trainer import BatchStream
from headrace.executor import Executor


class TrainerServers(RowServers, Protocol):
    """A trainer's connection to all servers, also for what is done between epochs.

    Every method raises CommunicationError, naming the server, where it fails or its deadline
    passes.
    """

    def read(self, group: int, ids: NDArray[np.int64], ends: NDArray[np.int64]) -> RowValues:
        """Return rows of a group, in their order; those that are not there yet are not created.

        They have their initial values then.

        Parameters
        ----------
        ends : [tables of the group]: where the ids of each table end.
        """
        ...

    def load(self, table: int, ids: NDArray[np.int64], values: RowValues) -> None:
        """Overwrite rows of a table.

        Parameters
        ----------
        values : [rows, dim], whose state is initial then, or [rows, dim + state].
        """
        ...

    def export(self, table: int, after: int, limit: int) -> tuple[NDArray[np.int64], RowValues]:
        """Return rows of a table whose ids are above `after`, rising, and their ids.

        Parameters
        ----------
        limit : most rows; fewer are the last ones.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class JobCommits:
    """Where a trainer's commits go, and the one that its job begins from.

    Attributes
    ----------
    start : number of this start of the job.
    mark : None: the job begins anew.
    report : tells the cacher that this trainer has written its part: see `CacherClient.commit`.
    """

    folder: CommitFolder
    start: int
    mark: Mark | None
    report: Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TrainerConnections:
    """A trainer's connections.

    Attributes
    ----------
    executor : of the trainers' group, connected; the trainer's number is its rank.
    epoch : returns the stream of an epoch's batches, by the number of the epoch; batches are
        numbered on over epochs.
    prefetch : batches between a row's fetch and its use.
    deadline_s : of a wait for other trainers.
    close : ends what the trainer has started besides; called last.
    commits : where the job's commits go; None: it makes none.
    ideal : whether no rows move; see `headrace.embeddings.run.ideal`.
    """

    executor: Executor
    servers: TrainerServers
    epoch: Callable[[int], BatchStream]
    prefetch: int
    deadline_s: float
    close: Callable[[], None]
    commits: JobCommits | None = None
    ideal: bool = False


Connect = Callable[[JobDescription], TrainerConnections]
"""Joins a job as one of its trainers."""
