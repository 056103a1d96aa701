"""Parts of several readers: together the batches of one, lines that are rejected included."""

import gzip
import io
import re
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.embeddings import (
    AvazuData,
    CriteoData,
    EmbeddingError,
    ExampleError,
    ParquetData,
    ParquetFormat,
)
from headrace.embeddings.data.criteo import HASHES
from headrace.embeddings.data.examples import Examples
from headrace.embeddings.data.made_files import click_source, write_clicks
from headrace.embeddings.data.parts import ReaderPart, batch_lines, part_batches
from headrace.embeddings.data.skew import Skew
from tests.embeddings.data.test_criteo import LINE, generated


def assert_same(batches: list[Examples], expected: list[Examples]) -> None:
    assert [len(batch) for batch in batches] == [len(batch) for batch in expected]
    for batch, other in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(batch.dense, other.dense)
        np.testing.assert_array_equal(batch.labels, other.labels)
        for mine, theirs in zip(batch.ids, other.ids, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        for mine, theirs in zip(batch.lengths, other.lengths, strict=True):
            assert (mine is None) == (theirs is None)
            np.testing.assert_array_equal(mine, theirs)


def together(data: CriteoData | AvazuData | ParquetData, readers: int) -> list[Examples]:
    """Return all readers' batches in the order of the batches."""
    parts = [
        [*part_batches(data, ReaderPart(reader=reader, readers=readers, first=reader))]
        for reader in range(readers)
    ]
    rounds = [*zip_longest(*parts)]
    assert all(batch is not None for batches in rounds[:-1] for batch in batches)
    return [batch for batches in rounds for batch in batches if batch is not None]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three files, one of them compressed and one whose last line has no end."""
    folder = tmp_path_factory.mktemp("clicks")
    lines = generated(120).splitlines(keepends=True)
    (folder / "day_0").write_bytes(b"".join(lines[:37]))
    (folder / "day_1.gz").write_bytes(gzip.compress(b"".join(lines[37:90])))
    (folder / "day_2").write_bytes(b"".join(lines[90:]).rstrip(b"\n"))
    return sorted(folder.iterdir())


@settings(max_examples=25, deadline=None)
@given(batch=st.integers(1, 130), readers=st.integers(1, 5), block_bytes=st.integers(1, 9000))
def test_readers_together_have_the_batches_of_one(
    files: list[Path], batch: int, readers: int, block_bytes: int
) -> None:
    data = CriteoData.of(files, batch=batch)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headrace.embeddings.data.text._BLOCK_BYTES", block_bytes)
        assert_same(together(data, readers), [*data.read()])


@pytest.fixture(scope="module")
def avazu_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files that begin with a header each; one has no examples, and one no end of its last line."""
    folder = tmp_path_factory.mktemp("avazu")
    made = io.BytesIO()
    skew = Skew(kind="uniform")
    source = click_source("avazu", skew, most_rows=50, seed=1)
    assert list(write_clicks(made, "avazu", source, 60)) == [60]
    header, *lines = made.getvalue().splitlines(keepends=True)
    (folder / "0").write_bytes(header + b"".join(lines[:21]))
    (folder / "1").write_bytes(header)
    (folder / "2.gz").write_bytes(gzip.compress(header + b"".join(lines[21:24])))
    (folder / "3").write_bytes(header + b"".join(lines[24:]).rstrip(b"\n"))
    return sorted(folder.iterdir())


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 70), readers=st.integers(1, 5), block_bytes=st.integers(1, 9000))
def test_readers_of_files_with_headers_have_the_batches_of_one(
    avazu_files: list[Path], batch: int, readers: int, block_bytes: int
) -> None:
    data = AvazuData.of(avazu_files, batch=batch)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headrace.embeddings.data.text._BLOCK_BYTES", block_bytes)
        assert_same(together(data, readers), [*data.read()])


def columns(first: int, rows: int) -> pa.Table:
    numbers = list(range(first, first + rows))
    bags = [[number] * (number % 3) for number in numbers]
    return pa.table({"label": numbers, "a": numbers, "bag": pa.array(bags, pa.list_(pa.int64()))})


PARQUET = ParquetFormat(ids=("a", "bag"), dense=("a",))


@settings(max_examples=20, deadline=None)
@given(
    batch=st.integers(1, 70),
    readers=st.integers(1, 5),
    group=st.integers(1, 40),
    piece=st.integers(1, 20),
)
def test_readers_of_row_groups_have_the_batches_of_one(
    tmp_path_factory: pytest.TempPathFactory, batch: int, readers: int, group: int, piece: int
) -> None:
    folder = tmp_path_factory.mktemp("parquet")
    for name, (first, rows) in {"0": (0, 31), "1": (31, 0), "2": (31, 2), "3": (33, 27)}.items():
        parquet.write_table(columns(first, rows), folder / name, row_group_size=group)
    data = ParquetData.of([folder], batch=batch, layout=PARQUET)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headrace.embeddings.data.parquet._ROWS", piece)
        batches = together(data, readers)
    assert_same(batches, [*data.read()])
    assert np.concatenate([batch.ids[0] for batch in batches]).tolist() == list(range(60))


def test_readers_leave_out_a_shorter_last_batch(files: list[Path], tmp_path: Path) -> None:
    table = tmp_path / "clicks.parquet"
    parquet.write_table(columns(0, 120), table, row_group_size=50)
    for batch, whole in ((16, 7), (20, 6), (121, 0)):
        for data in (
            CriteoData.of(files, batch=batch, drop_last=True),
            ParquetData.of([table], batch=batch, layout=PARQUET, drop_last=True),
        ):
            for readers in (1, 3):
                assert [len(examples) for examples in together(data, readers)] == [batch] * whole
            assert [len(examples) for examples in data.read()] == [batch] * whole


def test_row_groups_of_other_readers_are_not_read(tmp_path: Path) -> None:
    """The second of three row groups has only zeros in place of its pages."""
    path = tmp_path / "clicks"
    parquet.write_table(columns(0, 30), path, row_group_size=10)
    content = bytearray(path.read_bytes())
    metadata = parquet.read_metadata(path)
    starts = [metadata.row_group(group).column(0).dictionary_page_offset for group in (1, 2)]
    content[starts[0] : starts[1]] = bytes(starts[1] - starts[0])
    path.write_bytes(content)
    data = ParquetData.of([path], batch=10, layout=PARQUET)
    read = [*part_batches(data, ReaderPart(reader=0, readers=2, first=0))]
    assert [batch.ids[0].tolist() for batch in read] == [list(range(10)), list(range(20, 30))]
    with pytest.raises(ExampleError, match="clicks: cannot be read"):
        list(part_batches(data, ReaderPart(reader=1, readers=2, first=1)))


def test_rejected_rows_are_left_out_of_their_batch(tmp_path: Path) -> None:
    path = tmp_path / "clicks"
    labels = [0, 1, None, 1, None, None, 1]
    parquet.write_table(pa.table({"label": labels, "a": range(7)}), path)
    layout = ParquetFormat(ids=("a",))
    rejects = tmp_path / "rejects"
    data = ParquetData.of([path], batch=2, layout=layout, most_rejected=1.0, rejects=rejects)
    batches = together(data, 2)
    assert [batch.ids[0].tolist() for batch in batches] == [[0, 1], [3], [], [6]]
    rows = [
        row.split("\t")[1]
        for reader in range(2)
        for row in Path(f"{rejects}.{reader}").read_text().splitlines()
    ]
    assert rows == ["5", "6", "3"]


def test_a_part_begins_at_any_of_its_batches(files: list[Path]) -> None:
    data = CriteoData.of(files, batch=16)
    expected = [*data.read()]
    later = [*part_batches(data, ReaderPart(reader=1, readers=3, first=4))]
    assert_same(later, [expected[4], expected[7]])
    assert not [*part_batches(data, ReaderPart(reader=1, readers=3, first=10))]
    for wrong in ({"reader": 3}, {"reader": 1, "first": 3}, {"reader": 0, "first": -3}):
        with pytest.raises(EmbeddingError, match="reader"):
            ReaderPart(**{"readers": 3, **wrong})


def test_rejected_lines_are_left_out_of_their_batch(tmp_path: Path) -> None:
    """Batches of other readers have the same lines, whether or not some are rejected before."""
    lines = [f"{LINE[:-8]}{number:08x}" for number in range(14)]
    lines[2] = lines[8] = lines[9] = lines[10] = lines[11] = "no example"
    path = tmp_path / "clicks.tsv"
    path.write_text("\n".join(lines))
    report = tmp_path / "rejects"
    for readers in (1, 2, 3):
        data = CriteoData.of([path], batch=4, most_rejected=1.0, rejects=report)
        batches = together(data, readers)
        last_ids = [batch.ids[HASHES - 1].tolist() for batch in batches]
        assert last_ids == [[0, 1, 3], [4, 5, 6, 7], [], [12, 13]]
        reports = [report] if readers == 1 else [*tmp_path.glob("rejects.*")]
        rows = [row.split("\t") for file in reports for row in file.read_text().splitlines()]
        assert sorted(int(row[1]) for row in rows) == [3, 9, 10, 11, 12]


@pytest.mark.parametrize("end", ["", "/clicks.tsv\t16\thas 1 col"])
def test_a_later_part_keeps_the_rejected_lines_before_it(tmp_path: Path, end: str) -> None:
    """A reader that began again in the midst of an epoch emptied the file.

    Lines that were parsed ahead are not written again; `end` is of a process lost while it wrote.
    """
    path, rejects = tmp_path / "clicks.tsv", tmp_path / "rejects"
    path.write_text("\n".join("no example" if n % 4 == 3 else LINE for n in range(24)))
    data = CriteoData.of([path], batch=4, most_rejected=0.5, rejects=rejects)
    expected = "".join(
        f"{path}\t{line}\thas 1 columns, needs 40\tno example\n" for line in range(4, 25, 4)
    )
    assert len([*part_batches(data, ReaderPart())]) == 6
    assert rejects.read_text() == expected
    first_lines = "".join(expected.splitlines(keepends=True)[:3])
    rejects.write_text(first_lines + end)
    assert len([*part_batches(data, ReaderPart(first=2))]) == 4
    assert rejects.read_text() == expected
    rejects.unlink()
    list(part_batches(data, ReaderPart(reader=1, readers=2, first=3)))
    assert len(Path(f"{rejects}.1").read_text().splitlines()) == 2
    rejects.write_text("of another job")
    list(part_batches(data, ReaderPart()))
    assert rejects.read_text() == expected


@pytest.mark.parametrize("readers", [1, 3])
def test_the_share_of_rejected_lines_counts_those_before_a_later_part(
    tmp_path: Path, readers: int
) -> None:
    """A job that began from a commit near an epoch's end ended by one rejected line of the last."""
    path, table = tmp_path / "clicks.tsv", tmp_path / "clicks.parquet"
    path.write_text("\n".join(LINE if n != 118 else "no example" for n in range(120)))
    labels = [1 if n != 118 else None for n in range(120)]
    parquet.write_table(pa.table({"label": labels, "a": range(120)}), table)
    layout = ParquetFormat(ids=("a",))
    for data in (
        CriteoData.of([path], batch=4, most_rejected=0.03),
        ParquetData.of([table], batch=4, layout=layout, most_rejected=0.03),
    ):
        later = ReaderPart(reader=29 % readers, readers=readers, first=29)
        assert [len(batch) for batch in part_batches(data, later)] == [3]
        many = replace(data, most_rejected=0.005)
        with pytest.raises(ExampleError, match="mend the file, or allow a share of rejected"):
            list(part_batches(many, later))


def test_rejected_lines_of_a_batch_are_written_before_it_is_passed_on(tmp_path: Path) -> None:
    """Where the process is lost with later batches, no other one reads this batch again."""
    path, rejects = tmp_path / "clicks.tsv", tmp_path / "rejects"
    path.write_text("\n".join([LINE, "no example", LINE, LINE]))
    data = CriteoData.of([path], batch=2, most_rejected=0.5, rejects=rejects)
    batches = part_batches(data, ReaderPart())
    next(batches)
    assert rejects.read_text().startswith(f"{path}\t2\t")
    table = tmp_path / "clicks.parquet"
    parquet.write_table(pa.table({"label": [1, None, 0, 1], "a": range(4)}), table)
    layout = ParquetFormat(ids=("a",))
    rows = ParquetData.of([table], batch=2, layout=layout, most_rejected=0.5, rejects=rejects)
    next(part_batches(rows, ReaderPart()))
    assert rejects.read_text().startswith(f"{table}\t2\t")


def test_a_wrong_line_is_named_by_the_reader_of_its_batch(tmp_path: Path) -> None:
    path = tmp_path / "clicks.tsv"
    path.write_text("\n".join([LINE] * 9 + ["no example"] + [LINE] * 5))
    data = CriteoData.of([path], batch=4)
    assert len([*part_batches(data, ReaderPart(reader=1, readers=2, first=1))]) == 2
    with pytest.raises(ExampleError, match=re.escape(f"{path}: line 10: has 1 columns")):
        list(part_batches(data, ReaderPart(readers=2)))


class Listed:
    """Data of no files."""

    batch = 2
    columns = 1

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def read(self, rejects: object = None) -> list[Examples]:
        del rejects
        return [self.examples[start : start + 2] for start in range(0, len(self.examples), 2)]


def test_other_data_are_read_in_whole(files: list[Path]) -> None:
    examples = CriteoData.of(files, batch=9).first(9)
    part = ReaderPart(reader=1, readers=2, first=3)
    batches = [*part_batches(Listed(examples), part)]  # pyright: ignore[reportArgumentType]
    assert_same(batches, [examples[6:8]])


def test_lines_of_other_batches_are_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(10)))
    part = ReaderPart(reader=1, readers=2, first=1)
    runs = [(run.line, run.text) for lines in batch_lines([str(path)], 3, part) for run in lines]
    assert runs == [(3, b"3\n4\n5\n"), (9, b"9\n")]
