"""Files of Criteo's format, against a reader that goes field by field; rejected lines."""

import gzip
import math
import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from headrace.embeddings import CriteoFormat, DenseScale, EmbeddingError, ExampleError, Rejects
from headrace.embeddings.data import text
from headrace.embeddings.data.criteo import HASHES, MISSING, read_criteo
from headrace.embeddings.data.examples import Examples, in_batches, merged_examples
from headrace.embeddings.data.generate import ClickSource, Skew

LINE = "\t".join(["1", *map(str, range(13)), *(f"{k:08x}" for k in range(26))])


def generated(examples: int) -> bytes:
    skew = Skew(kind="zipf", parameter=1.1)
    return b"".join(ClickSource(skew=skew, missing=0.2, seed=3).lines(examples))


def read(
    path: Path, layout: CriteoFormat | None = None, rejects: Rejects | None = None
) -> Examples:
    return merged_examples(list(read_criteo([path], layout or CriteoFormat(), rejects)))


def file(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "clicks.tsv"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize("block_bytes", [500, 4099, 1 << 22])
def test_examples_are_those_of_a_reader_of_single_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(text, "_BLOCK_BYTES", block_bytes)
    content = generated(150)
    path = tmp_path / "clicks.tsv"
    path.write_bytes(content)
    examples = read(path)
    for row, line in enumerate(content.decode().splitlines()):
        label, *fields = line.split("\t")
        assert examples.labels is not None
        assert examples.labels[row] == int(label)
        integers = [int(field) if field else 0 for field in fields[:13]]
        assert examples.dense[row] == pytest.approx([math.log(1 + number) for number in integers])
        ids = [int(field, 16) if field else MISSING for field in fields[13:]]
        assert [int(column[row]) for column in examples.ids] == ids
    assert len(examples) == 150


def test_lines_end_as_on_any_system_and_the_last_need_not(tmp_path: Path) -> None:
    path = tmp_path / "clicks.tsv"
    path.write_bytes(f"{LINE}\r\n{LINE}\n{LINE}".encode())
    examples = read(path)
    assert len(examples) == 3
    assert [int(column[0]) for column in examples.ids] == list(range(26))
    assert all((column == column[0]).all() for column in examples.ids)


def test_compressed_files_are_unpacked(tmp_path: Path) -> None:
    content = generated(40)
    (tmp_path / "day_0.gz").write_bytes(gzip.compress(content))
    (tmp_path / "day_0").write_bytes(content)
    packed, plain = read(tmp_path / "day_0.gz"), read(tmp_path / "day_0")
    assert (packed.dense == plain.dense).all()
    assert all((a == b).all() for a, b in zip(packed.ids, plain.ids, strict=True))


def test_files_for_tests_have_no_label(tmp_path: Path) -> None:
    path = file(tmp_path, LINE.partition("\t")[2])
    examples = read(path, CriteoFormat(labelled=False))
    assert examples.labels is None
    assert examples.dense.shape == (1, 13)
    with pytest.raises(ExampleError, match="line 1: has 39 columns, needs 40"):
        read(path)


def test_hashes_are_taken_into_tables_whose_row_0_is_that_of_empty_fields(tmp_path: Path) -> None:
    fields = LINE.split("\t")
    fields[14:17] = ["", "ffffffff", "5"]
    rows = (7, 1000, 2, *(100,) * (HASHES - 3))
    examples = read(file(tmp_path, "\t".join(fields)), CriteoFormat(rows=rows))
    ids = [int(column[0]) for column in examples.ids]
    assert ids[:4] == [0, 1 + 0xFFFFFFFF % 999, 1, 1 + 3]
    for wrong in (rows[1:], (1, *rows[1:])):
        with pytest.raises(EmbeddingError, match="rows"):
            CriteoFormat(rows=wrong)


def test_scales_of_integers() -> None:
    integers = np.array([-2, 0, 1, 2, 3, 1000])
    assert DenseScale.LOG.apply(integers) == pytest.approx(
        [0, 0, math.log(2), math.log(3), math.log(4), math.log(1001)]
    )
    assert DenseScale.LOG_PLUS_3.apply(integers - 2) == pytest.approx(
        [0, 0, math.log(2), math.log(3), math.log(4), math.log(1001)]
    )
    assert DenseScale.LOG_SQUARED.apply(integers).tolist() == [-2, 0, 1, 2, 1, 47]
    assert DenseScale.NONE.apply(integers).tolist() == integers.tolist()


@pytest.mark.parametrize(
    ("column", "field", "needed"),
    [
        (0, "2", "0 or 1"),
        (0, "", "0 or 1"),
        (4, "x1", "an integer"),
        (4, "-", "an integer"),
        (4, "1" * 19, "an integer"),
        (4, "a", "an integer"),
        (20, "g0", "a hash"),
        (20, "123456789", "a hash"),
        (39, "-1", "a hash"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, column: int, field: str, needed: str) -> None:
    fields = LINE.split("\t")
    fields[column] = field
    path = file(tmp_path, LINE, "\t".join(fields))
    message = f"{path}: line 2: column {column + 1} is {field!r}, needs {needed}"
    with pytest.raises(ExampleError, match=re.escape(message)):
        read(path)


def test_negative_and_signed_numbers(tmp_path: Path) -> None:
    fields = LINE.split("\t")
    fields[1:4] = ["-1", "-999999999999999999", "007"]
    examples = read(file(tmp_path, "\t".join(fields)), CriteoFormat(scale=DenseScale.NONE))
    assert examples.dense[0, :3].tolist() == [-1, np.float32(-999999999999999999), 7]


def test_rejected_lines_are_written_with_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_BLOCK_BYTES", 1000)
    lines = [LINE] * 40
    lines[17], lines[3], lines[31] = "what is this", LINE.replace("00000003", "nothing"), ""
    path, report = file(tmp_path, *lines), tmp_path / "rejects.tsv"
    with closing(Rejects(report, most_share=0.1)) as rejects:
        examples = read(path, rejects=rejects)
    assert (len(examples), rejects.lines, rejects.rejected) == (37, 40, 3)
    rows = [line.split("\t", 3) for line in report.read_text().splitlines()]
    assert [(row[0], int(row[1]), row[3]) for row in rows] == [
        (str(path), number + 1, lines[number]) for number in (3, 17, 31)
    ]
    assert rows[1][2] == "has 1 columns, needs 40"


def test_too_many_rejected_lines_are_an_error(tmp_path: Path) -> None:
    path = file(tmp_path, *[LINE] * 20, "a", "b", "c")
    first = f"{path}: line 21: has 1 columns, needs 40"
    with pytest.raises(ExampleError, match=re.escape(first) + ": mend the file"):
        read(path)
    with pytest.raises(ExampleError, match=re.escape(f"{first}, and 2 more of 23 lines")):
        read(path, rejects=Rejects(most_share=0.1))
    assert len(read(path, rejects=Rejects(most_share=0.2))) == 20
    with pytest.raises(ExampleError, match="share of rejected lines is 2"):
        Rejects(most_share=2)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExampleError, match=r"absent\.tsv: cannot be read"):
        read(tmp_path / "absent.tsv")
    with pytest.raises(ExampleError, match=r"no/rejects: cannot be written"):
        Rejects(tmp_path / "no" / "rejects")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(generated(100))[:-400])
    with pytest.raises(ExampleError, match=r"cut\.gz: cannot be read"):
        read(tmp_path / "cut.gz")
    (tmp_path / "empty").touch()
    assert list(in_batches(read_criteo([tmp_path / "empty"], CriteoFormat()), 4)) == []
