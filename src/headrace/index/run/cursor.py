"""Cursors: an entry of an index, and the way to its neighbours."""

from typing import Any

from headrace import _native
from headrace._native import IndexCursor as NativeCursor
from headrace.facades import offered_by
from headrace.index.run.state import for_one


@offered_by("headrace.index")
class IndexCursor:
    """An entry of an index, and the way to the next and to the previous one.

    `Index.cursor` makes one. Changes of the index do not invalidate it: it keeps the entry that it
    is at, erased or not, and goes on to the next key that the index has by then, either way.
    """

    __slots__ = ("_entry", "_map", "_place")

    def __init__(self, native: _native.IndexMap) -> None:
        self._map = native
        self._place: Any = NativeCursor(native)
        self._entry: tuple[Any, Any] | None = None

    @property
    def key(self) -> Any:
        """The key of the entry; None: the cursor is at none."""
        return None if self._entry is None else self._entry[0]

    @property
    def value(self) -> Any:
        """The value of the entry as of when the cursor came there; None: it is at none."""
        return None if self._entry is None else self._entry[1]

    @property
    def item(self) -> tuple[Any, Any] | None:
        """Key and value; None: the cursor is at no entry."""
        return self._entry

    def first(self) -> bool:
        """Go to the first entry; return whether there is one."""
        return self.seek(None)

    def last(self) -> bool:
        """Go to the last entry; return whether there is one."""
        self._place = NativeCursor(self._map)
        self._entry = self._place.previous()
        return self._entry is not None

    def seek(self, key: Any) -> bool:
        """Go to the least key that is not below `key` (None: to the first); return whether one is.

        Raises
        ------
        KeysError : `key` is none of the index's type.
        """
        self._entry = for_one(self._place.seek, key)
        return self._entry is not None

    def next(self) -> bool:
        """Go to the next entry; return whether there is one. At none it stays there."""
        self._entry = self._place.next()
        return self._entry is not None

    def previous(self) -> bool:
        """Go to the previous entry, from none to the last; return whether there is one."""
        self._entry = self._place.previous()
        return self._entry is not None
