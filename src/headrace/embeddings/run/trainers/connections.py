"""One trainer's connections with the processes of its job."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.embeddings.run.commits import CommitFolder, Mark
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.servers.row_client import ServerConnections
from headrace.embeddings.run.trainers.trainer import BatchStream
from headrace.executor import Executor


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
    servers: ServerConnections
    epoch: Callable[[int], BatchStream]
    prefetch: int
    deadline_s: float
    close: Callable[[], None]
    commits: JobCommits | None = None
    ideal: bool = False


Connect = Callable[[JobDescription], TrainerConnections]
"""Joins a job as one of its trainers."""
