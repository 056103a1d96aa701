"""Rows that a cache has room for, by group of tables."""

import pytest

from headrace.embeddings import EmbeddingError, EmbeddingTable
from headrace.embeddings.run.slots import slots_of_groups
from headrace.embeddings.tables import table_groups

TABLES = [
    EmbeddingTable(name="wide", rows=1000, dim=1),
    EmbeddingTable(name="deep", rows=1000, dim=4),
    EmbeddingTable(name="few", rows=3, dim=2),
]
COLUMNS = [(0, 1), (0,), (1,)]
ROWS = [table.rows for table in TABLES]


def test_each_column_has_as_many_rows_but_twice_those_of_its_table() -> None:
    groups = table_groups(TABLES)
    assert [group.dim for group in groups] == [1, 4, 2]
    row_bytes = 2 * 4 + 16 + 8
    assert slots_of_groups(groups, COLUMNS, ROWS, 100 * row_bytes) == (200, 100, 6)
    assert slots_of_groups(groups, COLUMNS, ROWS, row_bytes) == (2, 1, 1)
    with pytest.raises(EmbeddingError, match="a cache of 31 B has no room .* at least 32 B"):
        slots_of_groups(groups, COLUMNS, ROWS, row_bytes - 1)


def test_slots_are_numbered_with_32_bits() -> None:
    """A cache of 32 GiB for rows of one number was refused: it had more slots."""
    table = EmbeddingTable(name="wide", rows=1 << 40, dim=1)
    groups = table_groups([table])
    assert slots_of_groups(groups, [(0,)], [table.rows], 32 << 30) == ((1 << 32) - 1,)
