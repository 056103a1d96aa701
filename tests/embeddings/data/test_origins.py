"""Where an example comes from: errors name its file and line, also behind rejected lines."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from headrace.embeddings import (
    AvazuData,
    CriteoData,
    EmbeddingTable,
    InitialValues,
    ParquetData,
    ParquetFormat,
)
from headrace.embeddings.data.loader import LoaderData
from headrace.embeddings.data.origins import example_origin, first_outside, origin_in_order
from headrace.embeddings.data.parquet_columns import MISSING
from tests.embeddings.data.test_avazu import ROW, content
from tests.embeddings.data.test_criteo import LINE


def test_an_example_of_text_is_at_its_line_behind_rejected_ones(tmp_path: Path) -> None:
    first, second = tmp_path / "day_0", tmp_path / "day_1.gz"
    first.write_text("\n".join([LINE, "none", LINE, LINE, LINE]))
    second.write_bytes(gzip.compress("\n".join(["none", LINE, LINE]).encode()))
    data = CriteoData.of([first, second], batch=3, most_rejected=1.0)
    assert [len(batch) for batch in data.read()] == [3, 3]  # which closes the gaps
    assert example_origin(data, 0, 1) == f"{first}: line 3"
    assert example_origin(data, 1, 1) == f"{first}: line 5"
    assert example_origin(data, 2, 0) == f"{second}: line 2"
    assert origin_in_order(data, 4) == f"{second}: line 2"
    assert example_origin(data, 2, 7) == "batch 2, example 7"


def test_lines_of_avazu_count_its_header(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_bytes(content(ROW, ROW, ROW, ROW, ROW))
    assert example_origin(AvazuData.of([path], batch=2), 1, 1) == f"{path}: line 5"


def test_an_example_of_parquet_is_at_its_row(tmp_path: Path) -> None:
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, items in zip(paths, ([1, -1, 2, 3], [4, 5, -1, 6]), strict=True):
        table = pa.table({"label": np.ones(4), "item": items})
        parquet.write_table(table, path, row_group_size=2)
    data = ParquetData.of(paths, batch=3, layout=ParquetFormat(ids=("item",)), most_rejected=1.0)
    assert [len(batch) for batch in data.read()] == [3, 3]
    assert origin_in_order(data, 3) == f"{paths[1]}: row 1"
    assert example_origin(data, 0, 1) == f"{paths[0]}: row 3"
    assert example_origin(data, 1, 2) == f"{paths[1]}: row 2"
    assert example_origin(data, 2, 0) == f"{paths[1]}: row 4"


def test_examples_of_other_data_have_numbers(tmp_path: Path) -> None:
    loader = LoaderData([], batch=3, columns=1)
    assert example_origin(loader, 2, 1) == "batch 2, example 1"
    path = tmp_path / "clicks.tsv"
    path.write_text(LINE)
    data = CriteoData.of([path], batch=3)
    path.unlink()
    assert example_origin(data, 0, 0) == "batch 0, example 0"


@pytest.mark.parametrize(
    ("ids", "lengths", "rows", "expected"),
    [
        ([3, 10, 2], None, 10, (10, 1)),
        ([3, -1, 2], None, 10, (-1, 1)),
        ([3, -1, 2], None, 0, (-1, 1)),
        ([3, 1 << 62, 2], None, 0, None),
        ([3, 4, 10], [0, 2, 0, 1], 10, (10, 3)),
        ([], [0, 0], 10, None),
    ],
)
def test_the_first_id_outside_its_table_and_its_example(
    ids: list[int],
    lengths: list[int] | None,
    rows: int,
    expected: tuple[int, int] | None,
) -> None:
    table = EmbeddingTable(name="items", rows=rows, dim=2, initial=InitialValues(scale=1.0))
    outside = first_outside(
        [np.array(ids, np.int64)], [None if lengths is None else np.array(lengths)], [table]
    )
    assert (None if outside is None else (outside.id, outside.example)) == expected


def test_the_id_of_a_missing_value_is_named_as_that() -> None:
    """The remedy was a table of more rows than a table can have."""
    table = EmbeddingTable(name="items", rows=10, dim=2)
    outside = first_outside([np.array([3, MISSING])], [None], [table])
    assert outside is not None
    assert str(outside.error("a.parquet: row 2")) == (
        f"a.parquet: row 2: table items: id {MISSING}, as of a missing value, needs 0 to 9: fill "
        "it in the data, or name the rows of tables in its layout (rows=)"
    )
