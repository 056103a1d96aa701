import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ArtifactError, InputError
from headrace.files import parse_json, read_bytes, read_text, whole_file, write_whole


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


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    """A second run let all users read a file that its owner had closed to them."""
    path = tmp_path / "x"
    path.write_bytes(b"first")
    path.chmod(0o600)
    with whole_file(path) as file:
        file.write(b"second")
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("letter", ["x", "\N{LINEAR B SYLLABLE B008 A}"])
def test_a_file_may_have_the_longest_name(tmp_path: Path, letter: str) -> None:
    """The name of the temporary file beside it was too long: what took hours was not written."""
    path = tmp_path / (letter * (255 // len(letter.encode())))
    write_whole(path, b"first")
    assert path.read_bytes() == b"first"


def test_a_file_system_need_not_sync_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders that a virtual machine shares with its host do not: each file was an error."""
    refusal = errno.EINVAL

    def sync_file(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "fsync", sync_file)
    write_whole(tmp_path / "x", b"first")
    assert (tmp_path / "x").read_bytes() == b"first"
    refusal = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        write_whole(tmp_path / "x", b"second")


def test_a_folder_that_may_be_written_and_not_read_has_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that several users drop files in: each was an error, though it was written."""

    def open_file(path: Any, *options: Any, opened: Callable[..., int] = os.open) -> int:
        if Path(path).is_dir():  # root may read any
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *options)

    synced: list[bool] = []
    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "sync", lambda: synced.append((tmp_path / "x").exists()))
    write_whole(tmp_path / "x", b"first")
    assert ((tmp_path / "x").read_bytes(), synced) == (b"first", [True])


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    """A file took its place, and the one that it named stayed as it was."""
    (tmp_path / "runs").mkdir()
    path, link = tmp_path / "runs" / "x", tmp_path / "latest"
    link.symlink_to("runs/x")
    for content in (b"first", b"second"):
        with whole_file(link) as file:
            file.write(content)
        assert path.read_bytes() == content
    assert link.is_symlink()
    assert sorted(tmp_path.rglob("*")) == [link, path.parent, path]
