"""Commits that all trainers take part in, at a process that serves them."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.errors import CommunicationError

T = TypeVar("T")

WaitUntil = Callable[[Callable[[], bool]], None]
"""Waits until a predicate holds; raises where the call that waits cannot go on."""


class JointCommits(Generic[T]):
    """Commits, each of which is made when the last trainer has written its part.

    Parameters
    ----------
    changed : is notified when a commit ends, and guards this.
    """

    def __init__(self, trainers: int, changed: threading.Condition) -> None:
        self._trainers = trainers
        self._changed = changed
        self._commits: dict[int, _Commit[T]] = {}
        self._left: dict[int, str] = {}  # trainers, and the reason

    @property
    def under_way(self) -> int:
        """Commits that some trainers have taken part in, and others have not."""
        return len(self._commits)

    def leave(self, trainer: int, reason: str) -> None:
        """Note that a trainer takes no more part: commits fail that wait for it, and later ones."""
        with self._changed:
            self._left.setdefault(trainer, reason)
            for number in [*self._commits]:
                self._end_without_those_that_left(number)

    def take_part(self, number: int, trainer: int, make: Callable[[], T], wait: WaitUntil) -> T:
        """Note that a trainer has written its part; return what `make` returned, at its last call.

        Parameters
        ----------
        number : of the commit.
        make : is called once, for the last trainer.

        Raises
        ------
        CommunicationError : a trainer has left that had to take part.
        Exception : what `make` raised, for all trainers; or `wait`.
        """
        with self._changed:
            commit = self._commits.setdefault(number, _Commit())
            commit.trainers.add(trainer)
            self._end_without_those_that_left(number)
            last = len(commit.trainers) == self._trainers
        if last:
            commit.make(make)
            with self._changed:
                self._commits.pop(number)
                commit.ended = True
                self._changed.notify_all()
        else:
            wait(lambda: commit.ended)
        return commit.result()

    def _end_without_those_that_left(self, number: int) -> None:
        commit = self._commits[number]
        for trainer, reason in self._left.items():
            if trainer not in commit.trainers:
                commit.fail(
                    CommunicationError(
                        f"commit {number} is not made: trainer {trainer} left before it, {reason}"
                    )
                )
                del self._commits[number]
                self._changed.notify_all()
                return


class _Commit(Generic[T]):
    """A commit under way."""

    def __init__(self) -> None:
        self.trainers: set[int] = set()
        self.ended = False
        self._results: list[T] = []
        self._error: Exception | None = None

    def make(self, make: Callable[[], T]) -> None:
        try:
            self._results.append(make())
        except Exception as error:  # of any kind: all trainers get it
            self._error = error

    def fail(self, error: Exception) -> None:
        self._error = error
        self.ended = True

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._results[0]
