"""Lines of text against a reader that goes field by field, and files that are no text of lines."""

import bz2
import gzip
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._native import FieldKind, parse_click_lines, text_ids
from headrace.embeddings import ExampleError, Rejects
from headrace.embeddings.data import text
from headrace.embeddings.data.guess import guess_format
from headrace.embeddings.data.text import LineFormat, parse_lines, text_blocks
from tests.embeddings.data.field_reader import read_line

KINDS = list(FieldKind)
ALPHABET = "019afF-x\r "
RIGHT = ("0", "1", "", "-5", "14102123", "ffffffff", "999999999", "1" * 18)


@settings(deadline=None, max_examples=150)
@given(st.data(), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["\t", ","]))
def test_lines_are_those_of_a_reader_of_single_fields(
    data: st.DataObject, end: str, separator: str
) -> None:
    kinds = tuple(data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6)))
    tables = st.sampled_from([0, 2, 1000, 1 << 32, 1 << 40])
    rows = tuple(data.draw(st.lists(tables, min_size=len(kinds), max_size=len(kinds))))
    field = st.sampled_from(RIGHT) | st.text(ALPHABET, max_size=10)
    count = st.just(len(kinds)) | st.integers(1, 7)
    lines = [
        separator.join(data.draw(st.lists(field, min_size=number, max_size=number)))
        for number in data.draw(st.lists(count, max_size=8))
    ]
    # A return before the line's end belongs to the end.
    lines = [line if end == "\r\n" or not line.endswith("\r") else line + "x" for line in lines]
    parsed = parse_click_lines((end.join([*lines, "half"])).encode(), kinds, rows, separator)
    expected = [read_line(line, kinds, rows, separator) for line in lines]
    assert parsed.lines == len(lines)
    assert parsed.numbers.T.tolist() == [line.numbers for line in expected if line.wrong is None]
    wrong = {number: line.wrong for number, line in enumerate(expected) if line.wrong is not None}
    assert dict(zip(parsed.rejected_lines, parsed.rejected_fields, strict=True)) == wrong


@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize("content", [b"", b"\n", b"a", b"ab\ncd\n\nefghijklm\r\no"])
def test_blocks_are_the_text_in_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, content: bytes
) -> None:
    monkeypatch.setattr(text, "_BLOCK_BYTES", block_bytes)
    (tmp_path / "lines.gz").write_bytes(gzip.compress(content))
    (tmp_path / "lines").write_bytes(content)
    for name in ("lines", "lines.gz"):
        blocks = list(text_blocks(tmp_path / name))
        assert all(block.endswith(b"\n") for block in blocks)
        end = b"\n" if content and not content.endswith(b"\n") else b""
        assert b"".join(blocks) == content + end


def test_a_stream_that_arrow_refuses_by_an_error_of_its_own_is_named(tmp_path: Path) -> None:
    """Of bzip2 with an empty stream amid others, it passed as an ArrowException without a file."""
    path = tmp_path / "clicks.bz2"
    path.write_bytes(b"".join(map(bz2.compress, (b"a\n", b"", b"b\n"))))
    for read in (guess_format, lambda path: list(text_blocks(path))):
        with pytest.raises(ExampleError, match=r"clicks\.bz2: cannot be read: .*bz2"):
            read(path)


def test_a_file_without_lines_is_refused_before_it_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(text, "_MOST_LINE_BYTES", 3000)
    path = tmp_path / "numbers.bin"
    path.write_bytes(b"ok\n" + bytes(10_000))
    with pytest.raises(ExampleError, match=r"numbers\.bin: has a line of more than 3000 bytes"):
        list(text_blocks(path))


def test_rejected_lines_of_any_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    layout = LineFormat(separator=",", kinds=(FieldKind.HASH,) * 2, rows=(0, 0))
    with closing(Rejects(tmp_path / "rejects", most_share=1)) as rejects:
        numbers, lines = parse_lines(b"1,2\n\xff\xfe,3\r\n4\n", layout, "f", 10, rejects)
    assert (numbers.tolist(), lines) == ([[1], [2]], 3)
    assert (tmp_path / "rejects").read_bytes() == (
        "f\t12\tcolumn 1 is '\ufffd\ufffd', needs a hash of up to 8 hexadecimal digits\t".encode()
        + b"\xff\xfe,3\nf\t13\thas 1 columns, needs 2\t4\n"
    )


def test_ids_of_texts_are_checked() -> None:
    ids = np.empty(2, np.int64)
    for offsets in ([0, 1], [0, 2, 1], [0, 1, 4], [-1, 0, 0]):
        with pytest.raises(ValueError, match="offsets need"):
            text_ids(np.zeros(3, np.uint8), np.array(offsets), ids)
