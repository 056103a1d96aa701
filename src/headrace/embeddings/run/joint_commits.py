"""Commits that all trainers take part in, at a process that serves them."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

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

    def take_part(self, number: int, trainer: int, make: Callable[[], T], wait: WaitUntil) -> T:
        """Note that a trainer has written its part; return what `make` returned, at its last call.

        Parameters
        ----------
        number : of the commit.
        make : is called once, for the last trainer.

        Raises
        ------
        Exception : what `make` raised, for all trainers; or `wait`.
        """
        with self._changed:
            commit = self._commits.setdefault(number, _Commit())
            commit.trainers.add(trainer)
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

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._results[0]
