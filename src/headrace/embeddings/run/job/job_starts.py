"""Starts of a job, one after the other: from which commit, and on which hosts."""

from collections.abc import Callable, Sequence

from headrace.embeddings.errors import EmbeddingError, JobError
from headrace.embeddings.run.commits import CommitFolder, Mark
from headrace.embeddings.run.job.job_processes import (
    JobHosts,
    ProcessKey,
    key_of,
    name_of,
)

LAST_LINES = "; its last lines:"
"""In an error, before the last lines of a process."""


class JobStarts:
    """Starts of a job: it begins again once from each commit, and once before the first one.

    Parameters
    ----------
    folder : of the job's commits; None: it starts once.
    hosts : of the processes; a function is called for those of every start.
    restart : whether it starts again.
    min_trainers : fewest that are left where others do not come back; None: all.

    Attributes
    ----------
    lost : processes that were lost in the start before, and are awaited in this one.

    Raises
    ------
    EmbeddingError : `min_trainers` are more than there are, or there is no folder.
    """

    def __init__(
        self,
        folder: CommitFolder | None,
        hosts: JobHosts | Callable[[], JobHosts],
        *,
        restart: bool,
        min_trainers: int | None,
    ) -> None:
        self._folder = folder
        self._hosts = hosts
        self._restart = restart
        self._min_trainers = min_trainers
        self._begun_again_from = set[int | None]()
        self._loss: JobError | None = None
        self._left: int | None = None
        self.lost: tuple[ProcessKey, ...] = ()
        self._check()

    def _check(self) -> None:
        if self._min_trainers is None:
            return
        if self._folder is None:
            raise EmbeddingError(
                "--min-trainers needs --state: a job goes on with fewer trainers from its last "
                "commit"
            )
        if isinstance(self._hosts, JobHosts) and self._min_trainers > len(self._hosts.trainers):
            raise EmbeddingError(
                f"--min-trainers is {self._min_trainers}, needs at most the job's "
                f"{len(self._hosts.trainers)} trainers"
            )

    def begin(self, on_line: Callable[[str], None]) -> JobHosts:
        """Return the hosts of another start.

        Parameters
        ----------
        on_line : gets a line on where it begins, and why, unless it is the first one.

        Raises
        ------
        EmbeddingError : the last commit cannot be read.
        """
        mark = None if self._folder is None else self._folder.newest()
        if self._loss is not None:
            self._begun_again_from.add(_commit_of(mark))
        if self._loss is not None or mark is not None:
            on_line(self._line(mark))
        return self._hosts() if callable(self._hosts) else self._hosts

    def _line(self, mark: Mark | None) -> str:
        place = "anew" if mark is None else f"from {mark.place}"
        left = "" if self._left is None else f", with as many trainers as are left: {self._left}"
        reason = "" if self._loss is None else str(self._loss).splitlines()[0]
        before = f"{reason.removesuffix(LAST_LINES)}. " if reason else ""
        return f"{before}The job begins {place}{left}."

    def lose(self, loss: JobError) -> None:
        """Let a start follow that lost processes; trainers that are gone have no part in it.

        Raises
        ------
        JobError : the loss, where no start can follow.
        """
        if self._folder is None or not self._restart or not loss.lost:
            raise loss
        self._loss, self._left = loss, None
        self.lost = tuple(map(key_of, loss.processes))
        if loss.gone or _commit_of(self._folder.newest()) in self._begun_again_from:
            self._leave_out(loss)  # they would be lost there again

    def _leave_out(self, loss: JobError) -> None:
        of_trainers = bool(self.lost) and all(kind == "trainer" for kind, _ in self.lost)
        if self._min_trainers is None or not of_trainers or not isinstance(self._hosts, JobHosts):
            raise loss
        self._left = len(self._hosts.trainers) - len(self.lost)
        if self._left < self._min_trainers:
            raise loss
        self._hosts = self._hosts.without(self.lost)
        self.lost = ()  # their numbers are those of other trainers now


def _commit_of(mark: Mark | None) -> int | None:
    return None if mark is None else mark.commit


def gone_error(lost: Sequence[ProcessKey], hosts: JobHosts, reason: str) -> JobError:
    """Return the error of trainers that do not come back, or cannot start."""
    names = [*map(name_of, lost)]
    left = len(hosts.trainers) - len(lost)
    remedy = (
        f"\nTo go on with the others, run the job with --trainers {left} and the same --state; "
        f"--min-trainers {left} does so by itself"
    )
    text = f"{', '.join(names)} did not come back: {reason}{remedy if left else ''}"
    return JobError(text, 1, lost=True, processes=names, gone=True)
