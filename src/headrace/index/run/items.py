"""The items of an index: pairs of a key and a value, as a dictionary's."""

from collections.abc import ItemsView, Iterator
from typing import Any

from headrace.facades import offered_by
from headrace.index.run.columns import equal_number
from headrace.index.run.order import OrderedReads
from headrace.index.run.state import ABSENT, numbers_list

_AT_ONCE = 4096


@offered_by("headrace.index")
class IndexItems(ItemsView[Any, Any]):
    """Pairs of a key and its value, in the order of the keys: a view, which follows changes.

    ``items[3]`` is the pair at a position, ``items[3:5]`` a list of pairs.
    """

    __slots__ = ("_index",)

    def __init__(self, index: Any) -> None:
        self._index: OrderedReads = index

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._pairs(reverse=False)

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        return self._pairs(reverse=True)

    def _pairs(self, *, reverse: bool) -> Iterator[tuple[Any, Any]]:
        for keys, values in self._index.blocks(size=_AT_ONCE, reverse=reverse):
            assert values is not None
            yield from zip(numbers_list(keys), values.tolist(), strict=True)

    def __contains__(self, item: object) -> bool:
        if not (isinstance(item, tuple) and len(item) == 2):
            return False
        index: Any = self._index
        key, value = item
        if key not in index:
            return False
        number = equal_number(key, index.dtype)
        stored = index.get(key if number is None else number, ABSENT)
        return stored is not ABSENT and bool(stored == value)

    def __getitem__(self, position: int | slice) -> Any:
        if not isinstance(position, slice):
            return self._index.peekitem(position)
        return [self._index.peekitem(place) for place in range(len(self))[position]]

    def __repr__(self) -> str:
        return f"<items of {self._index!r}>"
