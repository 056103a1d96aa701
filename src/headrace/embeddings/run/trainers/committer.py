"""One trainer's part of commits: its state, once the servers have logged the rows."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.commits import Beginning, Mark
from headrace.embeddings.run.trainers.connections import JobCommits
from headrace.embeddings.run.trainers.synchronise import RowCommit
from headrace.embeddings.run.trainers.trainer_state import (
    TrainerState,
    set_random_state,
    state_from_bytes,
    state_to_bytes,
)
from headrace.errors import CommunicationError
from headrace.files import read_bytes, write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where training is: see `Mark`."""

    epoch: int
    epoch_began: int
    batch: int
    steps: int


class Committer:
    """Makes a trainer's commits, one after the other, in a thread.

    Parameters
    ----------
    trainer : its number; the first one saves the dense part for all.
    """

    def __init__(self, commits: JobCommits, state: TrainerState, trainer: int) -> None:
        self._commits = commits
        self._state = state
        self._trainer = trainer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commits")
        self._under_way: Future[None] | None = None
        self._random: Mapping[str, Any] | None = None

    @property
    def beginning(self) -> Beginning:
        """Point that the job begins at."""
        return Beginning.after(self._commits.mark)

    def restore(self) -> None:
        """Take over the state of the job's commit, but for random numbers.

        Raises
        ------
        EmbeddingError : a file cannot be read, or the script has other optimizers or objects.
        """
        mark = self._commits.mark
        if mark is None:
            return
        dense = self._load(mark, 0)
        self._state.restore_parts(dense)
        if self._trainer < mark.trainers:
            self._random = self._load(mark, self._trainer)["random"]

    def restore_random(self) -> None:
        """Set random numbers as they were at the job's commit, once: before the first batch."""
        if self._random is not None:
            set_random_state(self._random)
            self._random = None

    def begin(self, rows: RowCommit, position: Position) -> None:
        """Begin a commit with the state of now, when the one before it is made.

        Raises
        ------
        CommunicationError : the one before it failed.
        """
        self.finish()
        state = self._state.capture(dense=self._trainer == 0)
        self._under_way = self._thread.submit(self._make, rows, position, state)

    def finish(self) -> None:
        """Wait until the commit that has begun is made.

        Raises
        ------
        CommunicationError : it failed.
        """
        if self._under_way is not None:
            self._under_way.result()  # its calls have deadlines
            self._under_way = None

    def close(self) -> None:
        """Make no more commits."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _make(self, rows: RowCommit, position: Position, state: Mapping[str, Any]) -> None:
        commits = self._commits
        path = commits.folder.state(commits.start, rows.number, self._trainer)
        try:
            write_whole(path, state_to_bytes(state))
        except OSError as error:
            raise CommunicationError(f"{path}: cannot be written: {error.strerror}") from error
        commits.report(
            {
                "commit": rows.number,
                "epoch": position.epoch,
                "epoch_began": position.epoch_began,
                "batch": position.batch,
                "steps": position.steps,
                **rows.servers.result(),
            }
        )

    def _load(self, mark: Mark, trainer: int) -> dict[str, Any]:
        path = self._commits.folder.state(mark.start, mark.commit, trainer)
        return state_from_bytes(read_bytes(path, EmbeddingError), str(path))
