"""Indexes in folders from Python: synced groups of 1,000 inserts, against LMDB by py-lmdb."""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import headrace.index
from benchmarks.harness import Report
from benchmarks.index import answers

_GROUP = 1000
_TURN = 10  # groups that one commits before it is the other's turn
_MAP_BYTES = 8 << 30  # most that LMDB's file may take


def bars() -> dict[str, str]:
    return {"durable-python-over-lmdb": ">= 1"}


def measure(report: Report, *, quick: bool) -> None:
    """Commit the same groups to both by turns; LMDB's are made into bytes before time runs."""
    loaded, groups, rounds = (100_000, 100, 1) if quick else (1_000_000, 400, 3)
    report.note(
        "durable in Python: elapsed time of commits that are synced; LMDB by one putmulti a group, "
        "whose keys and values are bytes already"
    )
    report.bar(
        "durable-python-over-lmdb",
        median(_ratio(report, loaded, groups, seed) for seed in range(rounds)),
    )


def _ratio(report: Report, loaded: int, groups: int, seed: int) -> float:
    random = np.random.default_rng(seed)
    first = random.integers(0, 1 << 63, loaded, np.uint64)
    keys = random.integers(0, 1 << 63, (groups, _GROUP), np.uint64)
    seconds = {"headrace": 0.0, "lmdb": 0.0}
    with tempfile.TemporaryDirectory(prefix="headrace-durable-python-") as folder:
        index = headrace.index.open(Path(folder, "headrace"), key="uint64", value="uint64")
        index.replace(first, ~first)
        rival = _Lmdb(Path(folder, "lmdb"))
        for part in np.array_split(first, max(1, loaded // 100_000)):
            rival.commit(_pairs(part))
        for turn in range(0, groups, _TURN):
            columns = keys[turn : turn + _TURN]
            pairs = [_pairs(column) for column in columns]
            begun = time.perf_counter()
            for column in columns:
                index.insert(column, ~column, sync=True)
            seconds["headrace"] += time.perf_counter() - begun
            begun = time.perf_counter()
            for batch in pairs:
                rival.commit(batch)
            seconds["lmdb"] += time.perf_counter() - begun
        wrong = _wrong(index, rival, np.unique(np.concatenate([first, keys.ravel()])))
        rival.close()
        index.close()
    answers.count(wrong)
    ratio = seconds["lmdb"] / seconds["headrace"]
    report.row(
        "inserts in groups of 1,000 from Python, a second",
        loaded=loaded,
        groups=groups,
        **{name: round(groups * _GROUP / taken) for name, taken in seconds.items()},
        ratio=ratio,
    )
    return ratio


def _pairs(keys: np.ndarray) -> list[tuple[bytes, bytes]]:
    codes, values = keys.astype(">u8").tobytes(), (~keys).tobytes()
    return [(codes[at : at + 8], values[at : at + 8]) for at in range(0, len(codes), 8)]


def _wrong(index: headrace.index.DurableIndex, rival: "_Lmdb", expected: np.ndarray) -> int:
    """Return how many rows of the index, or of the rival, are not those that were committed."""
    found, values = index.range()
    if not np.array_equal(found, expected):
        return len(expected)
    return int((values != ~expected).sum()) + abs(rival.entries() - len(expected))


class _Lmdb:
    def __init__(self, folder: Path) -> None:
        import lmdb

        self._environment: Any = lmdb.open(str(folder), map_size=_MAP_BYTES)

    def commit(self, pairs: list[tuple[bytes, bytes]]) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(pairs)

    def entries(self) -> int:
        return self._environment.stat()["entries"]

    def close(self) -> None:
        self._environment.close()
