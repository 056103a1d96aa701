"""Items from one thread to another, in their order, with room for a bounded number of them."""

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Handoff(Generic[T]):
    """Items from a thread that makes them ahead to one that takes them.

    Parameters
    ----------
    room : for items that are not taken yet.

    Attributes
    ----------
    changed : is notified of every change, and guards them.
    """

    def __init__(self, room: int) -> None:
        self.changed = threading.Condition()
        self._room = room
        self._items: deque[T] = deque()
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None

    def __len__(self) -> int:
        """Return the number of items that are not taken yet."""
        return len(self._items)

    def set_room(self, room: int) -> None:
        """Change the room."""
        with self.changed:
            self._room = room
            self.changed.notify_all()

    def put(self, item: T) -> bool:
        """Add an item as soon as it has room; return False, and drop it, after `close`."""
        with self.changed:
            # `close` ends the wait: the thread that takes the items has the deadlines.
            self.changed.wait_for(lambda: len(self._items) < self._room or self._closed)
            if not self._closed:
                self._items.append(item)
                self.changed.notify_all()
            return not self._closed

    def fail(self, error: BaseException) -> None:
        """Add no more items; the error comes in place of those that wait."""
        with self.changed:
            self._items.clear()
            self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """Add no more items; an error comes after those that wait."""
        with self.changed:
            self._ended = True
            self._error = self._error or error
            self.changed.notify_all()

    def close(self) -> None:
        """Drop the items that wait, and those that would come."""
        with self.changed:
            self._closed = True
            self._items.clear()
            self.changed.notify_all()

    def ready(self) -> bool:
        """Return whether `take` has not to wait."""
        return bool(self._items) or self._ended or self._closed

    def take(self, *, release: bool = True) -> T | None:
        """Return the next item when `ready`; None after the last one, or after `close`.

        Parameters
        ----------
        release : whether its room is free at once; else after `release`.
        """
        with self.changed:
            if self._items:
                item = self._items.popleft()
                if release:
                    self.release()
                return item
            if self._error is not None and not self._closed:
                raise self._error
            return None

    def release(self) -> None:
        """Let `put` use the room of what was taken."""
        with self.changed:
            self.changed.notify_all()
