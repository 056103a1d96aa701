"""Traces in files of NumPy, Parquet and SOSD: kept as they are, refused with what is wrong."""

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from headrace.index.errors import TraceError
from headrace.index.measure.files import read_trace
from headrace.index.measure.workload import Workload
from headrace.index.trace import FIND, INSERT, Trace

KEYS = {
    "uint64": np.array([3, 2**64 - 1, 0], dtype=np.uint64),
    "int64": np.array([3, -(2**63), 0]),
    "float64": np.array([0.5, -np.inf, 2.0]),
}


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("kind", KEYS)
def test_a_trace_is_written_and_read(tmp_path: Path, kind: str, suffix: str) -> None:
    keys = KEYS[kind]
    trace = Trace.of(keys, np.array([0, 1, 3], dtype=np.uint8), keys[:2])
    trace.save(tmp_path / f"trace{suffix}")
    found = read_trace(tmp_path / f"trace{suffix}")
    assert found.kind == kind == trace.kind
    for name in ("loaded", "operations", "keys"):
        assert np.array_equal(getattr(found, name), getattr(trace, name))


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_trace_that_is_not_written_leaves_the_file_that_was_there(
    tmp_path: Path, suffix: str
) -> None:
    """It was cut to what there was room for, and the earlier trace was lost."""
    path = tmp_path / f"trace{suffix}"
    keys = np.random.default_rng(0).integers(0, 2**60, 10_000)
    small, large = (Trace.of(some, np.zeros(len(some), np.uint8)) for some in (keys[:3], keys))
    small.save(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(TraceError, match=f"trace{suffix}: cannot be written: File too large"):
            large.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert np.array_equal(read_trace(path).keys, small.keys)
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """Opening a named pipe blocks until a process opens it for writing."""
    for name in ("keys", "keys.npy", "trace.npz"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(TraceError, match="is a pipe, needs a file: keep what comes"):
            read_trace(tmp_path / name)


def test_parquet_may_name_operations(tmp_path: Path) -> None:
    names = ["load", "find", "insert", "erase", "scan"]
    table = pa.table({"operation": names, "key": [5, 5, 6, 5, 1]})
    parquet.write_table(table, tmp_path / "trace.parquet")
    found = read_trace(tmp_path / "trace.parquet")
    assert found.operations.tolist() == [0, 1, 2, 3]
    assert len(found.loaded) == 1


@pytest.mark.parametrize("name", ["books_uint64", "books_uint32", "books.npy"])
def test_key_sets_become_workloads(tmp_path: Path, name: str) -> None:
    kind = np.uint32 if name.endswith("uint32") else np.uint64
    keys = np.arange(1000, dtype=kind) * kind(7)
    if name.endswith("npy"):
        np.save(tmp_path / name, keys)
    else:
        (tmp_path / name).write_bytes(np.uint64(len(keys)).tobytes() + keys.tobytes())
    trace = read_trace(tmp_path / name, Workload(inserts=0.5))
    inserted = trace.keys[trace.operations == INSERT]
    held = np.concatenate([trace.loaded, inserted])
    assert len(np.unique(held)) == len(held) >= 900
    assert set(np.unique(trace.operations)) == {FIND, INSERT}
    assert np.isin(trace.keys, keys).all()


def arrays(**named: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **named)


def renamed(write: Callable[[Path], object], suffix: str) -> Callable[[Path], object]:
    """Return a function that writes a file by a name of its own, and gives it the one asked for."""

    def write_renamed(path: Path) -> None:
        write(path.with_suffix(suffix))
        path.with_suffix(suffix).rename(path)

    return write_renamed


def table(**named: Any) -> Callable[[Path], None]:
    return lambda path: parquet.write_table(pa.table(named), path)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("t.npz", arrays(keys=[1]), "array 'operations' is missing, needs keys and operations"),
        ("t.npz", arrays(keys=[1], operations=[0], x=[1]), "array 'x' is unknown, needs keys"),
        ("t.npz", arrays(keys=[1, 2], operations=[0]), "operations are 1, keys 2"),
        ("t.npz", arrays(keys=[np.nan], operations=[0]), "keys: key 0 is NaN"),
        ("t.npz", lambda path: path.write_bytes(b"no"), "is not npz"),
        ("t.npz", arrays(keys=np.array([None]), operations=[0]), "is not npz: .*pickle"),
        # ended in a TypeError, and was one of keys that are strings
        ("t.npz", renamed(lambda path: np.save(path, [1, 2]), ".npy"), "is one array, needs an ar"),
        ("t.npy", renamed(arrays(keys=[1], operations=[0]), ".npz"), "is an archive of arrays, ne"),
        ("t.npy", lambda path: path.write_bytes(b"\x93NUMPY"), "is not npy"),
        ("t.npy", lambda path: np.save(path, np.array(["a", "b"])), "keys: have type <U1"),
        ("t.npy", lambda path: np.save(path, np.array([1, 1])), "keys: 1 different ones, needs"),
        ("t.parquet", table(key=[1]), "column 'operation' is missing, needs operation and key"),
        ("t.parquet", table(key=[1], operation=["get"]), "column 'operation' has 'get', needs fin"),
        ("t.parquet", table(key=[1, None], operation=[0, 1]), "column 'key' has 1 empty cells"),
        ("t.parquet", table(key=["a"], operation=[0]), "keys: have type object"),
        ("t.parquet", lambda path: path.write_bytes(b"no"), "is not Parquet"),
        ("keys", lambda path: path.write_bytes(b"short"), "has 5 bytes, needs 8: a 64-bit count"),
        ("keys", lambda path: path.write_bytes(bytes([2] + [0] * 15)), "has 16 bytes, needs 24"),
        ("missing.npz", lambda path: None, "cannot be read: No such file"),
    ],
)
def test_wrong_files_are_named(
    tmp_path: Path, name: str, write: Callable[[Path], object], message: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(TraceError, match=f"{name}: .*{message}"):
        read_trace(tmp_path / name)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    """Errors of zlib and of Python's parser of headers were not taken for damage."""
    keys = np.random.default_rng(0).integers(0, 1000, 500)
    packed, plain = tmp_path / "t.npz", tmp_path / "t.npy"
    np.savez_compressed(packed, keys=keys, operations=np.zeros(500, np.uint8))
    np.save(plain, keys)
    compression = packed.read_bytes().index(b"PK\x01\x02") + 10  # of an array, in the list of all
    bracket = plain.read_bytes().index(b"(500,)") + 5
    for path, position in ((packed, 60), (packed, 100), (packed, compression), (plain, bracket)):
        content = path.read_bytes()
        path.write_bytes(content[:position] + b" " + content[position + 1 :])
        with pytest.raises(TraceError, match=f"t{path.suffix}: is not {path.suffix[1:]}: "):
            read_trace(path)
        path.write_bytes(content)


def test_other_names_are_not_written(tmp_path: Path) -> None:
    trace = Trace.of(KEYS["int64"], np.zeros(3, dtype=np.uint8))
    with pytest.raises(TraceError, match=r"ends with '.txt', needs .npz or .parquet"):
        trace.save(tmp_path / "trace.txt")
    with pytest.raises(TraceError, match="cannot be written: No such file"):
        trace.save(tmp_path / "folder" / "trace.npz")
