"""The format of files by how they begin."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from headrace.embeddings import ExampleError
from headrace.embeddings.data.avazu import HEADER
from headrace.embeddings.data.guess import guess_format


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"1\t2\t\t3\n", "criteo"),
        (b"", "criteo"),
        (b"\r\n1\t2\n", "criteo"),
        (",".join(HEADER).encode(), "avazu"),
        (b"id,hour,C1\n", "avazu"),
    ],
)
def test_text_by_its_first_line(tmp_path: Path, content: bytes, name: str, packed: bool) -> None:
    path = tmp_path / ("day_0.gz" if packed else "day_0")
    path.write_bytes(gzip.compress(content) if packed else content)
    assert guess_format(path).name == name


def test_parquet_by_its_magic_bytes(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": [1]}), tmp_path / "clicks")
    assert guess_format(tmp_path / "clicks") == ("parquet", "it begins with PAR1")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"label,C1\n1,2\n")
    with pytest.raises(ExampleError, match=r"f: begins with 'label,C1', as files of none"):
        guess_format(tmp_path / "f")
    with pytest.raises(ExampleError, match="absent: cannot be read: No such file or directory$"):
        guess_format(tmp_path / "absent")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"1\t2\n" * 1000)[:12])
    with pytest.raises(ExampleError, match=r"cut\.gz: cannot be read"):
        guess_format(tmp_path / "cut.gz")
