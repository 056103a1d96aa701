"""Tables, and their groups by the shape of their rows."""

import pytest

from headrace.embeddings import EmbeddingError, EmbeddingTable, InitialValues
from headrace.embeddings.tables import table_groups


def test_tables_of_one_dimension_are_one_group() -> None:
    tables = [
        EmbeddingTable(name=str(number), rows=100, dim=dim)
        for number, dim in enumerate((48, 1, 48, 16, 1))
    ]
    groups = table_groups(tables, state_per_row=1, state_per_number=2)
    assert [group.tables for group in groups] == [(0, 2), (1, 4), (3,)]
    assert [group.width for group in groups] == [48 * 3 + 1, 4, 16 * 3 + 1]


def test_initial_values_are_scaled_by_the_rows() -> None:
    assert EmbeddingTable(name="t", rows=100, dim=4).initial_scale == 0.1
    normal = InitialValues(distribution="normal", scale=0.01)
    assert EmbeddingTable(name="t", rows=0, dim=4, initial=normal).initial_scale == 0.01
    with pytest.raises(EmbeddingError, match="hashed ids, and no number of rows"):
        EmbeddingTable(name="t", rows=0, dim=4)
