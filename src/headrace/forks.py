"""Forks: what a child process may use of its parent's objects (see docs/architecture.md, "Forks").

A child of ``os.fork`` has copies of all objects and no thread but the one that forked. What is in
memory alone works there; what has a file, a connection, a process or a thread belongs to the
process that made it, keeps a `ForkMark`, and refuses its methods by name in a child. Locks
of what is in memory are `ThreadLock`s. The native core's part is native/process.hpp.
"""

import _thread
import os
import weakref
from typing import Any

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


class ThreadLock(_thread.RLock):  # pyright: ignore[reportGeneralTypeIssues]  # final in stubs alone
    """A lock that its thread can take again; a copy is a lock of its own.

    In the child of a fork it is free, unless the thread that forked has it. ``with`` is that of the
    interpreter's lock, in which no interrupt (Ctrl-C) comes between taking it and the block: one
    within an ``__enter__`` of Python's would leave it locked for all other threads.
    """

    def __init__(self) -> None:
        super().__init__()
        _locks.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadLock, ()

    def free_in_child(self) -> None:
        """Free the lock in the child of a fork, which has no other thread that could."""
        if self.acquire(blocking=False):
            self.release()
        else:
            # as the standard library's modules do; private in Python 3.9 to 3.14
            self._at_fork_reinit()  # pyright: ignore[reportAttributeAccessIssue]


_locks = weakref.WeakSet[ThreadLock]()


def _begin_child() -> None:
    global _forks
    _forks += 1
    for lock in _locks:
        lock.free_in_child()


os.register_at_fork(after_in_child=_begin_child)
