"""Locks of captures and steps, for processes that train in several threads."""

import os
import threading
import weakref
from types import TracebackType
from typing import Any


class ThreadLock:
    """A lock that its thread can take again; a copy is a lock of its own.

    In the child of a fork it is free, unless the thread that forked has it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadLock, ()

    def free_in_child(self) -> None:
        """Free the lock in the child of a fork, which has no other thread that could."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


_LOCKS = weakref.WeakSet[ThreadLock]()


def _free_all() -> None:
    for lock in _LOCKS:
        lock.free_in_child()


os.register_at_fork(after_in_child=_free_all)

CAPTURES = ThreadLock()
"""Held while a model is captured, measured and set back: one at a time in a process, as a trace
swaps parameters and sets back random generators. A capture within one of its thread takes it again;
backward passes never wait for it."""

DRAWS = ThreadLock()
"""Held while a thread of a fitted step draws from default generators, or has set one back."""
