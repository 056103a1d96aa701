"""Files of Avazu's format: written and read back, headers, files for tests, wrong lines."""

import gzip
import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.embeddings import AvazuData, AvazuFormat, EmbeddingError, ExampleError, Rejects
from headrace.embeddings.data import text
from headrace.embeddings.data.avazu import HEADER, TABLES
from headrace.embeddings.data.criteo import MISSING
from headrace.embeddings.data.examples import Examples, merged_examples
from headrace.embeddings.data.files import data_from_fields

ROW = {
    **dict.fromkeys(HEADER, "7"),
    "id": "10000174058809263569",
    "click": "1",
    "hour": "14102112",
    "site_id": "235ba823",
    "C20": "-1",
}


def content(*rows: dict[str, str], header: tuple[str, ...] = HEADER, end: str = "\n") -> bytes:
    lines = [",".join(header), *(",".join(row[name] for name in header) for row in rows)]
    return "".join(line + end for line in lines).encode()


def read(path: Path, layout: AvazuFormat | None = None, rejects: Rejects | None = None) -> Examples:
    parts = list((layout or AvazuFormat()).read([path], rejects or Rejects()))
    return merged_examples(parts)


def test_the_columns_are_those_of_the_files() -> None:
    assert ",".join(HEADER) == (
        "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,"
        "app_category,device_id,device_ip,device_model,device_type,device_conn_type,"
        "C14,C15,C16,C17,C18,C19,C20,C21"
    )
    assert len(TABLES) == AvazuFormat().tables == 21


CODES = st.integers(-999_999_999, 999_999_999).map(str) | st.just("")
HASHES = st.integers(0, 2**32 - 1).map(lambda number: f"{number:08x}") | st.just("")
HASHED = [name for name in TABLES if "_" in name and "type" not in name and "pos" not in name]
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 2**64).map(str),
        "click": st.sampled_from("01"),
        "hour": st.integers(0, 23).map(lambda hour: f"141021{hour:02}"),
        **{name: HASHES if name in HASHED else CODES for name in TABLES},
    }
)


def expected_id(name: str, field: str) -> int:
    if not field:
        return MISSING
    number = int(field, 16 if name in HASHED else 10)
    return number if number >= 0 else MISSING - number


@settings(deadline=None, max_examples=30)
@given(
    rows=st.lists(ROWS, min_size=1, max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
    block_bytes=st.sampled_from([64, 1000, 1 << 20]),
    clicks=st.booleans(),
)
def test_examples_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, str]],
    end: str,
    block_bytes: int,
    clicks: bool,
) -> None:
    path = tmp_path_factory.mktemp("avazu") / "clicks.gz"
    header = HEADER if clicks else tuple(name for name in HEADER if name != "click")
    path.write_bytes(gzip.compress(content(*rows, header=header, end=end)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_BLOCK_BYTES", block_bytes)
        examples = read(path, AvazuFormat(labelled=clicks))
    assert len(examples) == len(rows)
    if clicks:
        assert examples.labels is not None
        assert examples.labels.tolist() == [int(row["click"]) for row in rows]
    else:
        assert examples.labels is None
    assert examples.dense[:, 0] == pytest.approx([int(row["hour"][-2:]) / 24 for row in rows])
    for name, ids in zip(TABLES, examples.ids, strict=True):
        assert ids.tolist() == [expected_id(name, row[name]) for row in rows]


def test_clicks_are_left_out_where_they_are_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(content({**ROW, "click": "?"}))
    assert read(tmp_path / "train", AvazuFormat(labelled=False)).labels is None
    header = tuple(name for name in HEADER if name != "click")
    (tmp_path / "test").write_bytes(content(ROW, header=header))
    with pytest.raises(ExampleError, match="test: has no column 'click', as files for tests"):
        read(tmp_path / "test")


def test_ids_are_taken_into_tables(tmp_path: Path) -> None:
    (tmp_path / "clicks").write_bytes(content({**ROW, "C1": "", "C14": "1000"}))
    rows = tuple(range(2, 23))
    ids = read(tmp_path / "clicks", AvazuFormat(rows=rows)).ids
    for name, count, column in zip(TABLES, rows, ids, strict=True):
        field = {"C1": "", "C14": "1000"}.get(name, ROW[name])
        assert column[0] == (1 + expected_id(name, field) % (count - 1) if field else 0)
    with pytest.raises(EmbeddingError, match="rows are of 2 tables, needs 21"):
        AvazuFormat(rows=(5, 5))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER[1:], "column 1 of the header is 'click', needs 'id'"),
        ((*HEADER[:5], "site", *HEADER[6:]), "column 6 of the header is 'site', needs 'site_id'"),
        (HEADER[:-1], "the header has 23 columns, needs 24"),
        ((*HEADER, "C22"), "the header has 25 columns, needs 24"),
        (("1", *HEADER[1:]), "column 1 of the header is '1', needs 'id'"),
    ],
)
def test_other_headers_are_refused(tmp_path: Path, header: tuple[str, ...], message: str) -> None:
    path = tmp_path / "clicks"
    path.write_bytes(content({**ROW, **dict.fromkeys(header, "7")}, header=header))
    with pytest.raises(ExampleError, match=re.escape(f"{path}: line 1: {message}")):
        read(path)


def test_wrong_lines_are_rejected_with_their_numbers(tmp_path: Path) -> None:
    wrong = {"click": "2", "hour": "14102124", "site_id": "x", "C21": "1234567890"}
    rows = [dict(ROW) for _ in range(9)]
    for place, (name, field) in enumerate(wrong.items()):
        rows[2 * place][name] = field
    path = tmp_path / "clicks"
    path.write_bytes(content(*rows) + b"7,1\n")
    with closing(Rejects(tmp_path / "rejects", most_share=0.5)) as rejects:
        assert len(read(path, rejects=rejects)) == 5
    assert rejects.lines == 10
    written = [line.split("\t") for line in (tmp_path / "rejects").read_text().splitlines()]
    assert [int(line[1]) for line in written] == [2, 4, 6, 8, 11]
    assert [line[2].split(",")[0] for line in written] == [
        "column 2 is '2'",
        "column 3 is '14102124'",
        "column 6 is 'x'",
        "column 24 is '1234567890'",
        "has 2 columns",
    ]
    with pytest.raises(ExampleError, match="line 2: column 2 is '2', needs 0 or 1"):
        read(path)


def test_files_that_are_cut_or_empty(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(content(*[ROW] * 2000))[:-20])
    with pytest.raises(ExampleError, match=r"cut\.gz: cannot be read"):
        read(tmp_path / "cut.gz")
    (tmp_path / "empty").touch()
    (tmp_path / "header").write_bytes(content())
    assert list(AvazuFormat().read([tmp_path / "empty", tmp_path / "header"], Rejects())) == []


def test_it_is_data_of_a_job(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(content(*[ROW] * 3))
    data = AvazuData.of([tmp_path], batch=4, layout=AvazuFormat(rows=(10,) * 21))
    assert data.columns == 21
    assert [len(batch) for batch in data.read()] == [4, 2]
    assert data_from_fields(data.to_fields()) == data
    assert np.isclose(data.first(1).dense, 0.5).all()
