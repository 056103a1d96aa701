from pathlib import Path

import pytest

from headrace.errors import ArtifactError, InputError
from headrace.files import parse_json, read_bytes, read_text, whole_file


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert read_bytes(path, most=6) == b"\xef\xbb\xbfabc"
    assert read_text(path) == "abc"
    with pytest.raises(ArtifactError, match="x: has more than 5 bytes"):
        read_bytes(path, ArtifactError, 5)
    with pytest.raises(ArtifactError, match="nowhere: cannot be read: No such file"):
        read_bytes(tmp_path / "nowhere", ArtifactError)
    with pytest.raises(InputError, match="cannot be read: embedded null byte"):
        read_bytes("a\0b")
    path.write_bytes(b"ab\xff")
    with pytest.raises(ArtifactError, match="x: byte 2 is no UTF-8"):
        read_text(path, ArtifactError)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "NaN", "1e999", str(1 << 70)])
def test_text_that_is_not_json_is_refused(text: str) -> None:
    assert parse_json('{"a": 1}', "f") == {"a": 1}
    with pytest.raises(ArtifactError, match="f: is not JSON: "):
        parse_json(text, "f", ArtifactError)


def test_a_file_that_is_written_in_parts_is_complete_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with whole_file(path) as first, whole_file(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_bytes() == b"first"
    with pytest.raises(TypeError), whole_file(path) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]
