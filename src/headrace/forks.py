"""Forks: what a child process may use of its parent's objects (see docs/architecture.md, "Forks").

A child of ``os.fork`` has copies of all objects and no thread but the one that forked. What is in
memory alone works there; what has a file, a connection, a process or a thread belongs to the
process that made it, keeps a `ForkMark`, and refuses its methods by name in a child. The native
core's part is native/process.hpp.
"""

import os

from headrace.errors import ForkError

_forks = 0


class ForkMark:
    """The process in which it was made; its copy in a child still means the parent."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks = _forks

    @property
    def forked(self) -> bool:
        """True in a process that was forked from the one that made the mark."""
        return self._forks != _forks

    def check(self, what: str) -> None:
        """Raise an error in a child.

        Raises
        ------
        ForkError : naming `what` is used.
        """
        if self.forked:
            raise ForkError(
                f"{what} belongs to the process that made it, and this one was forked from it "
                "since; make another here, or use it in that process alone"
            )


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)
