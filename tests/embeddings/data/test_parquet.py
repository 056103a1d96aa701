"""Parquet files: written and read back, types of columns, missing values, wrong rows."""

import json
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.embeddings import (
    DenseScale,
    EmbeddingError,
    ExampleError,
    ParquetData,
    ParquetFormat,
    Rejects,
)
from headrace.embeddings.data.examples import Examples, merged_examples
from headrace.embeddings.data.files import data_from_fields
from headrace.embeddings.data.parquet import matching_columns
from headrace.embeddings.data.parquet_columns import MISSING

INTEGERS = (pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64())
TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary())


def hashed(text: str) -> int:
    """The hash by its definition, one byte after the other."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return (value ^ value >> 31) >> 1


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    parquet.write_table(pa.table(columns), path, **options)
    return path


def read(path: Path, rejects: Rejects | None = None, **layout: Any) -> Examples:
    return merged_examples(list(ParquetFormat(**layout).read([path], rejects or Rejects())))


def bags(ids: np.ndarray, lengths: np.ndarray | None) -> list[list[int]]:
    assert lengths is not None
    ends = np.cumsum(lengths)
    assert ends[-1] == len(ids)
    return [ids[end - count : end].tolist() for end, count in zip(ends, lengths, strict=True)]


IDS = st.none() | st.integers(0, 127)
WORDS = st.none() | st.text(max_size=12)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), count=st.integers(1, 30), group=st.integers(1, 30), words=st.booleans())
def test_examples_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    count: int,
    group: int,
    words: bool,
) -> None:
    def rows(values: st.SearchStrategy[Any]) -> list[Any]:
        return data.draw(st.lists(values, min_size=count, max_size=count))

    value = WORDS if words else IDS
    kind = data.draw(st.sampled_from(TEXTS if words else INTEGERS))
    single, several = rows(value), rows(st.none() | st.lists(value, max_size=4))
    pairs = rows(st.none() | st.lists(value, min_size=2, max_size=2))
    numbers = rows(st.none() | st.integers(-5, 100))
    labels = rows(st.floats(-1, 1, width=32))
    listed = data.draw(st.sampled_from([pa.list_, pa.large_list]))
    is_view = kind == pa.string_view()  # no dictionary of these can be written
    path = write(
        tmp_path_factory.mktemp("parquet") / "clicks.parquet",
        {
            "a": pa.array(encoded(single, kind), kind),
            "b": pa.array(
                encoded(single, kind), kind if is_view else pa.dictionary(pa.int32(), kind)
            ),
            "c": pa.array(encoded(several, kind), listed(kind)),
            "d": pa.array(encoded(pairs, kind), pa.list_(kind, 2)),
            "x": pa.array(numbers, pa.int16()),
            "y": pa.array(labels, pa.float32()),
            "unused": pa.array([{"field": 0}] * count),
        },
        row_group_size=group,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.embeddings.data.parquet._ROWS", data.draw(st.sampled_from([2, 99])))
        examples = read(path, ids=("a", "b", "c", "d", "a"), label="y", dense=("x", "y"))
    assert examples.labels is not None
    assert examples.labels.tolist() == labels
    assert examples.dense[:, 0].tolist() == [number or 0 for number in numbers]
    assert examples.dense[:, 1].tolist() == labels
    for column in (0, 1, 4):
        assert examples.ids[column].tolist() == ids_of(single)
        assert examples.lengths[column] is None
    assert bags(examples.ids[2], examples.lengths[2]) == [ids_of(bag or []) for bag in several]
    assert bags(examples.ids[3], examples.lengths[3]) == [ids_of(bag or []) for bag in pairs]


def encoded(values: Any, kind: pa.DataType) -> Any:
    """The values, texts as bytes where the type needs them."""
    if isinstance(values, list):
        return [encoded(value, kind) for value in values]
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return values.encode() if is_binary and isinstance(values, str) else values


def ids_of(values: Sequence[int | str | None]) -> list[int]:
    return [
        MISSING if value is None else hashed(value) if isinstance(value, str) else value
        for value in values
    ]


@pytest.mark.parametrize("kind", [pa.bool_(), pa.float16(), pa.decimal128(5, 2), pa.uint64()])
def test_numbers_of_any_type(tmp_path: Path, kind: pa.DataType) -> None:
    values = pa.array([0, 1, None], pa.int8()).cast(kind)
    path = write(tmp_path / "f", {"x": values, "a": [1, 2, 3]})
    assert read(path, ids=("a",), label=None, dense=("x",)).dense.tolist() == [[0], [1], [0]]
    scaled = read(path, ids=("a",), label=None, dense=("x",), scale=DenseScale.LOG).dense
    assert scaled[:, 0] == pytest.approx([0, np.log(2), 0])


def test_ids_of_tables_with_a_number_of_rows(tmp_path: Path) -> None:
    columns = {"a": [3, 9, 0], "t": ["x", None, "y"], "bag": [["x", None], None, []]}
    path = write(tmp_path / "f", columns)
    examples = read(path, ids=("a", "t", "bag"), label=None, rows=(10, 5, 7))
    assert examples.ids[0].tolist() == [3, 9, 0]
    assert examples.ids[1].tolist() == [1 + hashed("x") % 4, 0, 1 + hashed("y") % 4]
    assert bags(examples.ids[2], examples.lengths[2]) == [[1 + hashed("x") % 6, 0], [], []]
    with pytest.raises(ExampleError, match="row 2: column 'a' is 9, needs an id of 0 to 8"):
        read(path, ids=("a", "t", "bag"), label=None, rows=(9, 5, 7))


def test_wrong_rows_are_rejected_with_their_numbers(tmp_path: Path) -> None:
    columns = {
        "label": [1.0, None, 0.0, 1.0, 0.0, 1.0, 1.0],
        "x": [1.0, 2.0, float("inf"), 4.0, 5.0, 6.0, None],
        "a": [1, 2, 3, -4, 5, 6, 7],
        "bag": [[1], [], [3, 4], [5], [6, -7], [8, 9, 10], None],
    }
    path = write(tmp_path / "f", columns, row_group_size=4)
    layout: dict[str, Any] = {"ids": ("a", "bag"), "dense": ("x",)}
    with closing(Rejects(tmp_path / "rejects", most_share=0.6)) as rejects:
        examples = read(path, rejects, **layout)
    assert (rejects.lines, rejects.rejected) == (7, 4)
    assert examples.dense[:, 0].tolist() == [1, 6, 0]
    assert examples.ids[0].tolist() == [1, 6, 7]
    assert bags(examples.ids[1], examples.lengths[1]) == [[1], [8, 9, 10], []]
    written = [line.split("\t") for line in (tmp_path / "rejects").read_text().splitlines()]
    assert [line[:3] for line in written] == [
        [str(path), "2", "column 'label' is None, needs a finite number of 32 bits"],
        [str(path), "3", "column 'x' is inf, needs a finite number of 32 bits"],
        [str(path), "4", f"column 'a' is -4, needs an id of 0 to {MISSING}"],
        [str(path), "5", f"column 'bag' is [6, -7], needs an id of 0 to {MISSING}"],
    ]
    assert written[2][3] == "{'label': 1.0, 'x': 4.0, 'a': -4, 'bag': [5]}"
    with pytest.raises(ExampleError, match="row 2: column 'label' is None"):
        read(path, **layout)


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal256(76, 0)])
def test_numbers_beyond_32_bits_are_rejected(tmp_path: Path, kind: pa.DataType) -> None:
    """They became infinite in the examples."""
    most = int(np.finfo(np.float32).max)
    numbers = pa.array([most, -most, 10**39, 1, -(10**39)], pa.decimal256(76, 0)).cast(kind)
    labels = pa.array([1, most, 1, 10**60, 1], pa.decimal256(76, 0)).cast(kind)
    path = write(tmp_path / "f", {"label": labels, "x": numbers, "a": [1, 2, 3, 4, 5]})
    with closing(Rejects(tmp_path / "rejects", most_share=1.0)) as rejects:
        examples = read(path, rejects, ids=("a",), dense=("x",))
    assert examples.ids[0].tolist() == [1, 2]
    assert examples.dense[:, 0].tolist() == [most, -most]
    assert examples.labels is not None
    assert examples.labels.tolist() == [1, most]
    written = [line.split("\t") for line in (tmp_path / "rejects").read_text().splitlines()]
    assert [line[1] for line in written] == ["3", "4", "5"]
    assert all("needs a finite number of 32 bits" in line[2] for line in written)


@pytest.mark.parametrize("lists", [False, True])
def test_a_rejected_row_can_have_a_text_that_is_no_utf_8(tmp_path: Path, lists: bool) -> None:
    """As bytes that were written as texts: the reader ended with an error of their encoding."""
    texts = pa.array([b"\xff", b"a\xfe"], pa.binary()).view(pa.string())
    ids = pa.ListArray.from_arrays([0, 1, 2], texts) if lists else texts
    path = write(tmp_path / "f", {"x": [1.0, np.nan], "a": ids})
    with closing(Rejects(tmp_path / "rejects", most_share=1.0)) as rejects:
        assert len(read(path, rejects, ids=("a",), label=None, dense=("x",))) == 1
    reason, content = (tmp_path / "rejects").read_text().rstrip().split("\t")[2:]
    assert reason == "column 'x' is nan, needs a finite number of 32 bits"
    assert content == "{'x': nan, 'a': 'text that is no UTF-8'}"


def test_a_column_that_is_used_twice_is_checked_for_each_use(tmp_path: Path) -> None:
    """Only its last use was: a missing label became one that is no number."""
    path = write(tmp_path / "f", {"x": [1, None, 2], "a": [1, 2, 5]})
    with pytest.raises(ExampleError, match="row 2: column 'x' is None, needs a finite number"):
        read(path, ids=("a",), label="x", dense=("x",))
    with pytest.raises(ExampleError, match="row 3: column 'a' is 5, needs an id of 0 to 3"):
        read(path, ids=("a", "a"), rows=(4, 9), label=None)


def test_integers_beyond_63_bits_are_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "f", {"a": pa.array([MISSING, MISSING + 1], pa.uint64())})
    with pytest.raises(ExampleError, match=f"row 2: column 'a' is {MISSING + 1}, needs an id"):
        read(path, ids=("a",), label=None)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1]}, "has no column 'label', has a"),
        ({"label": [1], "b": [1]}, "has no column 'a', has label, b"),
        ({"label": ["1"], "a": [1]}, "column 'label' is of type string, needs numbers"),
        ({"label": [1], "a": [1.5]}, "column 'a' is of type double, needs integers, texts"),
        ({"label": [1], "a": [[1.5]]}, "column 'a' is of type list<"),
        ({"label": [1], "a": [[[1]]]}, "column 'a' is of type list<"),
        ({"label": [1], "a": [{"b": 1}]}, "column 'a' is of type struct<"),
    ],
)
def test_other_columns_are_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "f.parquet", columns)
    with pytest.raises(ExampleError, match=re.escape(f"{path}: {message}")):
        read(path, ids=("a",))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (pa.array([1]), pa.array(["1"]), "b: column 'a' has texts, in .*a it has integers: write"),
        (pa.array(["1"]), pa.array([[1]]), "column 'a' has lists of integers, in .* it has texts"),
        (pa.array([[1]]), pa.nulls(1), "has missing values, in .* it has lists of integers"),
        (pa.array([[1]]), pa.array([["1"]]), "has lists of texts, in .* it has lists of integers"),
        (pa.nulls(1), pa.array(["1"]).dictionary_encode(), None),
        (pa.array([1]), pa.array([1], pa.uint8()), None),
        (pa.array([[None]]), pa.array([[1]], pa.list_(pa.int8(), 1)), None),
    ],
)
def test_files_agree_in_the_form_of_ids(
    tmp_path: Path, first: pa.Array, second: pa.Array, message: str | None
) -> None:
    """An integer and its text were two rows; bags in later files were looked up as other ids."""
    click = pa.array([1.0])
    files = [
        write(tmp_path / name, {"a": column, "click": click})
        for name, column in (("a", first), ("b", second))
    ]
    layout = ParquetFormat(ids=("a",), label="click")
    data = ParquetData.of(files, batch=2, layout=layout)
    for read_files in (data.read, lambda: layout.read(files, Rejects())):
        if message is None:
            assert sum(map(len, read_files())) == 2
        else:
            with pytest.raises(ExampleError, match=message):
                list(read_files())


def test_two_columns_of_a_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    parquet.write_table(table, tmp_path / "f")
    with pytest.raises(ExampleError, match="has 2 columns 'a', needs one"):
        read(tmp_path / "f", ids=("a",), label=None)


def test_columns_need_names() -> None:
    with pytest.raises(EmbeddingError, match="no column of ids is named"):
        ParquetData.of(["f"], batch=1)
    with pytest.raises(EmbeddingError, match="rows are of 2 tables, needs 1"):
        ParquetFormat(ids=("a",), rows=(5, 5))


def test_files_that_are_no_parquet(tmp_path: Path) -> None:
    layout = ParquetFormat(ids=("a",), label=None)
    write(tmp_path / "whole", {"a": range(1000)})
    content = (tmp_path / "whole").read_bytes()
    for name, part in {"cut": content[:-50], "empty": b"", "text": b"a\tb\n" * 9}.items():
        (tmp_path / name).write_bytes(part)
        with pytest.raises(ExampleError, match=f"{name}: cannot be read"):
            list(layout.read([tmp_path / name], Rejects()))
    with pytest.raises(ExampleError, match="absent: cannot be read"):
        list(layout.read([tmp_path / "absent"], Rejects()))
    write(tmp_path / "none", {"a": pa.array([], pa.int64())})
    assert list(layout.read([tmp_path / "none"], Rejects())) == []


def test_row_groups_are_read_one_after_the_other(tmp_path: Path) -> None:
    """No later row group is read before the examples of the first one are taken."""
    columns = {"a": np.random.default_rng(0).integers(0, 1 << 60, 20_000)}
    path = write(tmp_path / "f", columns, row_group_size=5000, use_dictionary=False)
    start = parquet.read_metadata(path).row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 100] = bytes(100)
    path.write_bytes(content)
    parts = ParquetFormat(ids=("a",), label=None).read([path], Rejects())
    assert next(parts).ids[0].tolist() == columns["a"][:5000].tolist()
    with pytest.raises(ExampleError, match="f: cannot be read"):
        list(parts)


def test_it_is_data_of_a_job(tmp_path: Path) -> None:
    path = write(tmp_path / "f", {"label": [0, 1, 1], "a": [1, 2, 3], "x": [0.5, 1.5, 2.5]})
    layout = ParquetFormat(ids=("a",), dense=("x",), scale=DenseScale.LOG, rows=(4,))
    data = ParquetData.of([path], batch=2, layout=layout)
    assert data.columns == 1
    assert [len(batch) for batch in data.read()] == [2, 1]
    assert data_from_fields(json.loads(json.dumps(data.to_fields()))) == data


def test_columns_that_have_a_name_with_stars(tmp_path: Path) -> None:
    path = write(tmp_path / "f", {name: [1] for name in ("label", "C1", "C2", "C10")})
    assert matching_columns(path, ["C10", "C*"]) == ("C10", "C1", "C2")
    with pytest.raises(ExampleError, match=r"has no column 'X\*', has label, C1, C2, C10"):
        matching_columns(path, ["C*", "X*"])


def test_columns_without_a_single_value(tmp_path: Path) -> None:
    columns = {"x": pa.nulls(2), "a": pa.nulls(2), "bag": [[], [None]]}
    path = write(tmp_path / "f", columns)
    examples = read(path, ids=("a", "bag"), label=None, dense=("x",))
    assert examples.dense.tolist() == [[0], [0]]
    assert examples.ids[0].tolist() == [MISSING, MISSING]
    assert bags(examples.ids[1], examples.lengths[1]) == [[], [MISSING]]
