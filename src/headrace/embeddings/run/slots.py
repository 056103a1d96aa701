"""Room of a trainer's caches for each group of tables."""

from collections.abc import Sequence

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.tables import TableGroup
from headrace.units import size

_MOST_SLOTS = (1 << 32) - 1
"""Numbers of 32 bits, in decisions and messages."""


def slots_of_groups(
    groups: Sequence[TableGroup],
    columns: Sequence[Sequence[int]],
    rows: Sequence[int],
    cache_bytes: int,
) -> tuple[int, ...]:
    """Return rows that a trainer's cache has room for, of every group.

    The same number for each column of ids that a group's tables are looked up with; not more than
    twice the rows of the group's tables, of which some are on their way to or from a server, nor
    than slots can be numbered.

    Parameters
    ----------
    columns, rows : of every table.

    Raises
    ------
    EmbeddingError : there is no room for a row of each.
    """
    counts = _columns_of_groups(groups, columns)
    bytes_of_all = _row_bytes_of_all(groups, counts)
    if cache_bytes < bytes_of_all:
        raise EmbeddingError(
            f"a cache of {size(cache_bytes)} has no room for a row of every column of ids, needs "
            f"at least {size(bytes_of_all)}"
        )
    return tuple(
        min(
            cache_bytes * count // bytes_of_all,
            2 * sum(rows[table] for table in group.tables),
            _MOST_SLOTS,
        )
        for count, group in zip(counts, groups, strict=True)
    )


def cache_bytes_for(
    groups: Sequence[TableGroup], columns: Sequence[Sequence[int]], group: int, rows: int
) -> int:
    """Return the size of a trainer's caches that have room for so many rows of a group."""
    counts = _columns_of_groups(groups, columns)
    return -(-rows * _row_bytes_of_all(groups, counts) // counts[group])


def _columns_of_groups(groups: Sequence[TableGroup], columns: Sequence[Sequence[int]]) -> list[int]:
    return [sum(len(columns[table]) for table in group.tables) for group in groups]


def _row_bytes_of_all(groups: Sequence[TableGroup], counts: Sequence[int]) -> int:
    """Return the bytes of a row of every column of ids."""
    return sum(count * group.row_bytes for count, group in zip(counts, groups, strict=True))
