import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace import artifact
from headrace.artifact import Artifact
from headrace.errors import ArtifactError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
COLUMN = hnp.arrays(
    dtype=st.sampled_from([np.int32, np.int64, np.uint8, np.float64, np.float32]), shape=7
)


def example() -> Artifact:
    return Artifact(
        kind="profile",
        schema=3,
        head={"name": "four hosts", "links": [1, 2.5]},
        tables={"samples": {"src": np.arange(5, dtype=np.int32), "us": np.linspace(0, 1, 5)}},
        provenance={"seed": 7},
    )


def assert_same(one: Artifact, other: Artifact) -> None:
    assert (one.kind, one.schema, one.head) == (other.kind, other.schema, other.head)
    assert one.provenance == other.provenance
    assert one.tables.keys() == other.tables.keys()
    for name, table in one.tables.items():
        assert table.keys() == other.tables[name].keys()
        for column, values in table.items():
            np.testing.assert_array_equal(values, other.tables[name][column])
            assert values.dtype == other.tables[name][column].dtype


def test_disk_and_back_is_byte_for_byte(tmp_path: Path) -> None:
    example().save(tmp_path / "deep" / "a.headrace")
    loaded = artifact.load(tmp_path / "deep" / "a.headrace", "profile", 3)
    assert_same(loaded, example())
    assert loaded.to_bytes() == (tmp_path / "deep" / "a.headrace").read_bytes()


@given(
    head=st.dictionaries(st.text(), JSON, max_size=3),
    columns=st.dictionaries(st.text("abc", min_size=1), COLUMN, min_size=1, max_size=3),
)
def test_any_artifact_survives_the_trip(head: dict, columns: dict[str, np.ndarray]) -> None:
    made = Artifact(kind="k", schema=1, head=head, tables={"t": columns})
    again = artifact.from_bytes(made.to_bytes())
    assert_same(again, made)
    assert again.digest == made.digest
    assert again.to_bytes() == made.to_bytes()


def test_the_digest_covers_content_and_not_provenance() -> None:
    plain = example()
    altered = {
        "kind": Artifact(kind="plan", schema=3, head=plain.head, tables=plain.tables),
        "schema": Artifact(kind="profile", schema=4, head=plain.head, tables=plain.tables),
        "head": Artifact(kind="profile", schema=3, head={}, tables=plain.tables),
        "no table": Artifact(kind="profile", schema=3, head=plain.head),
        "values": Artifact(
            kind="profile",
            schema=3,
            head=plain.head,
            tables={"samples": {**plain.tables["samples"], "us": np.linspace(0, 2, 5)}},
        ),
        "type": Artifact(
            kind="profile",
            schema=3,
            head=plain.head,
            tables={"samples": {**plain.tables["samples"], "src": np.arange(5, dtype=np.int64)}},
        ),
    }
    digests = {name: value.digest for name, value in altered.items()}
    assert plain.digest not in digests.values()
    assert len(set(digests.values())) == len(digests)
    other = Artifact(kind="profile", schema=3, head=plain.head, tables=plain.tables)
    assert other.digest == plain.digest


def test_the_digest_is_independent_of_order_layout_and_byte_order() -> None:
    src = np.arange(5, dtype=np.int32)
    us = np.linspace(0, 1, 5)
    wide = np.zeros(10)
    wide[::2] = us
    shuffled = Artifact(
        kind="profile",
        schema=3,
        head={"links": [1, 2.5], "name": "four hosts"},
        tables={"samples": {"us": wide[::2], "src": src.astype(">i4")}},
    )
    assert shuffled.digest == example().digest
    assert artifact.from_bytes(shuffled.to_bytes()).digest == example().digest


def test_a_head_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        Artifact(kind="k", schema=1, head={"x": float("nan")}).to_bytes()


def with_envelope(**changes: object) -> bytes:
    """The example's bytes with fields of the envelope changed (None: removed)."""
    line, _, body = example().to_bytes().partition(b"\n")
    envelope = {**json.loads(line), **changes}
    envelope = {name: value for name, value in envelope.items() if value is not None}
    return json.dumps(envelope).encode() + b"\n" + body


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the first line is not JSON"),
        (b"\x80\x81 binary\n", "not"),
        (b'{"head": NaN}\n', "the first line is not JSON"),
        (b'{"head": 1e999}\n', "the first line is not JSON .*1e999 is out of range"),
        (b"[1]\n", "not a headrace artifact"),
        (with_envelope(format="zip"), "field 'format'"),
        (with_envelope(version=99), "field 'version' is 99, needs 1; a newer headrace wrote"),
        (with_envelope(kind=None), "field 'kind' is None, needs str"),
        (with_envelope(kind="topology"), "field 'kind' is 'topology', needs 'profile'"),
        (with_envelope(schema="3"), "field 'schema' is '3', needs int"),
        (
            with_envelope(schema=4),
            "field 'schema' is 4, needs 3; a newer headrace wrote the file: read it",
        ),
        (with_envelope(schema=2), "field 'schema' is 2, needs 3; an earlier .*: make it again"),
        (with_envelope(head=[1]), r"field 'head' is \[1\], needs dict"),
        (with_envelope(provenance=[1]), r"field 'provenance' is \[1\], needs dict"),
        (with_envelope(head={}), "field 'digest' is .* the file was altered or damaged"),
        (with_envelope(digest="0" * 64), "field 'digest'"),
        (with_envelope(tables=[["samples"]]), "field 'tables' is not"),
        (with_envelope(tables=[["samples", 5]]), "cut short or altered"),
        (example().to_bytes()[:-10], "cut short or altered"),
    ],
)
def test_a_bad_file_names_the_field_the_finding_and_the_remedy(raw: bytes, message: str) -> None:
    with pytest.raises(ArtifactError, match=message) as caught:
        artifact.from_bytes(raw, source="plan.headrace", kind="profile", schema=3)
    assert str(caught.value).startswith("plan.headrace: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"none.headrace: cannot be read: No such file"):
        artifact.load(tmp_path / "none.headrace")


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_changes_nothing_or_is_found(position: int, bit: int) -> None:
    raw = bytearray(example().to_bytes())
    raw[position % len(raw)] ^= 1 << bit
    try:
        loaded = artifact.from_bytes(bytes(raw), kind="profile", schema=3)
    except ArtifactError:
        return
    # provenance and Arrow's padding are outside the digest; the content is as it was
    assert loaded.digest == example().digest


def test_saving_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.headrace"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ArtifactError, match="a.headrace: cannot be written: the disk is full"):
        example().save(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_readable_as_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        example().save(tmp_path / "a.headrace")
    finally:
        os.umask(before)
    assert (tmp_path / "a.headrace").stat().st_mode & 0o777 == 0o640


def test_a_file_for_reading_alone_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder can be written, so that another file can take its name."""
    path = tmp_path / "kept"
    path.write_bytes(b"kept")
    path.chmod(0o400)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write any
    for write in (artifact.check_target, lambda target: artifact.write_file(target, b"")):
        with pytest.raises(ArtifactError, match="kept: cannot be written: Permission denied"):
            write(path)
    assert path.read_bytes() == b"kept"


def test_the_folder_of_a_links_file_is_checked(tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to("runs/x")
    with pytest.raises(ArtifactError, match="there is no folder '.*/runs'; make it first"):
        artifact.check_target(link)
    (tmp_path / "runs").mkdir()
    artifact.check_target(link)
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("file/below/a.headrace", "Not a directory"),
        ("folder", "not a regular file"),
        ("a" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_written_says_why(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ArtifactError, match=f"{path}: cannot be written: .*{reason}"):
        example().save(tmp_path / path)
    with pytest.raises(ArtifactError, match=f"{path}: cannot be written: .*{reason}"):
        artifact.check_target(tmp_path / path)


def _with_table(blob: bytes) -> bytes:
    envelope = json.loads(Artifact(kind="k", schema=1, head={}).to_bytes())
    return json.dumps({**envelope, "tables": [["t", len(blob)]]}).encode() + b"\n" + blob


@pytest.mark.parametrize("codec", ["lz4", "zstd", None])
@pytest.mark.parametrize(
    "column",
    [
        pa.array(np.zeros(1 << 22, np.int64)),
        pa.nulls(1 << 16),
        pa.array(["x"]).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays([1 << 16], pa.array([1], pa.int64())),
        pa.array([True]),
    ],
    ids=["zeros", "nulls", "dictionary", "runs", "bits"],
)
def test_columns_that_expand_are_refused_unread(column: pa.Array, codec: str | None) -> None:
    """A file of a few hundred bytes could stand for terabytes: Arrow compresses and repeats."""
    table, sink = pa.table({"c": column}), pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    raw = _with_table(sink.getvalue().to_pybytes())
    if codec is None and column.type == pa.int64():
        with pytest.raises(ArtifactError, match="digest"):  # read, and the digest is another's
            artifact.from_bytes(raw)
        return
    with pytest.raises(ArtifactError, match=r"not Arrow IPC: .* needs (numbers|plain)"):
        artifact.from_bytes(raw)


def test_checking_a_target_leaves_nothing_behind(tmp_path: Path) -> None:
    artifact.check_target(tmp_path / "a.headrace")
    with pytest.raises(ArtifactError, match="there is no folder '.*deep'; make it first"):
        artifact.check_target(tmp_path / "new" / "deep" / "a.headrace")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_files_is_not_called_missing() -> None:
    """Linux's /proc was said not to exist."""
    with pytest.raises(ArtifactError, match="no file can be made in '/proc'; name another folder"):
        artifact.check_target("/proc/a.headrace")
