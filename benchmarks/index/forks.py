"""Forks: children that hang, and indexes or folders that are damaged, of forks beside changes."""

import json
import multiprocessing
import os
import select
import signal
import subprocess
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import headrace
import headrace.index
from benchmarks.harness import Report

_DEADLINE_S = 30.0
_BATCH = 20_000
_KEYS = np.arange(1000, dtype=np.uint64)
_COMPILE_S, _NATIVE_S = 600.0, 3600.0

index = headrace.Index(_KEYS, 0)
"""Of this module, so that forked workers have it without pickling."""


def bars() -> dict[str, str]:
    return {"fork-hangs": "<= 0", "fork-damages": "<= 0"}


def measure(report: Report, *, quick: bool) -> None:
    forks = 20 if quick else 200
    total: Counter[str] = Counter()
    for name, run in (
        ("os.fork within a batch", _forks_in_batches),
        ("multiprocessing", _pools),
        ("DataLoader", _loaders),
        ("DurableMap, C++", _durable_maps),
    ):
        counts = run(forks)
        report.row("forks", case=name, forks=forks, **counts)
        total.update(counts)
    report.bar("fork-hangs", total["hangs"])
    report.bar("fork-damages", total["damages"])


@contextmanager
def _batches() -> Iterator[None]:
    """Change the index by batches from another thread, within and around forks."""
    ended = threading.Event()
    random = np.random.default_rng(0)

    def change() -> None:
        while not ended.is_set():
            keys = random.integers(2**20, 2**60, _BATCH, dtype=np.uint64)
            index.insert(keys, 1)
            index.erase(keys)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _counts(outcomes: list[str]) -> dict[str, int]:
    return {"hangs": outcomes.count("hang"), "damages": outcomes.count("damage")}


def _lookups_are_right() -> bool:
    """Return whether the copy of a child is whole and can be changed."""
    index.verify()
    index.insert(2**62, 7)
    return bool(index.find(_KEYS)[1].all()) and index.get(2**62) == 7


def _forks_in_batches(forks: int) -> dict[str, int]:
    with _batches():
        outcomes = [_outcome_of_child(_lookups_are_right) for _ in range(forks)]
    index.verify()
    return _counts(outcomes)


def _outcome_of_child(check: Callable[[], bool]) -> str:
    """Return "" for a child in which the check holds, else "hang" or "damage"."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's, beside threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    os.close(write)
    ended = bool(select.select([read], [], [], _DEADLINE_S)[0])
    if not ended:
        os.kill(child, signal.SIGKILL)
    os.close(read)
    status = os.waitpid(child, 0)[1]
    if not ended:
        return "hang"
    return "damage" if status else ""


def _found(_number: int) -> bool:
    return _lookups_are_right()


def _pools(forks: int) -> dict[str, int]:
    with _batches(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return _counts([_outcome_of_pool() for _ in range(forks)])


def _outcome_of_pool() -> str:
    """Return "" for a pool whose workers find what they should, and end, else as of a child."""
    pool = multiprocessing.get_context("fork").Pool(2)
    try:
        right = all(pool.map_async(_found, range(4)).get(_DEADLINE_S))
        outcome = "" if right else "damage"
    except multiprocessing.TimeoutError:
        outcome = "hang"
    # not by SIGTERM, which a worker that inherits the benchmark's handler may get too early
    pool.close()
    for worker in multiprocessing.active_children():
        worker.join(_DEADLINE_S)
        if worker.is_alive():
            worker.kill()
            outcome = "hang"
    pool.join()
    return outcome


class _Rows:
    """A dataset for PyTorch's loader whose rows are looked up in the worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, _row: int) -> int:
        return int(_lookups_are_right())


def _loaders(forks: int) -> dict[str, int]:
    from torch.utils.data import DataLoader

    outcomes: list[str] = []
    with _batches(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for _ in range(forks):
            loader = DataLoader(
                _Rows(),  # pyright: ignore[reportArgumentType]  # a map-style dataset by its methods
                num_workers=2,
                multiprocessing_context="fork",
                timeout=_DEADLINE_S,
            )
            try:
                right = sum(int(batch) for batch in loader) == 4
                outcomes.append("" if right else "damage")
            except RuntimeError as error:
                outcomes.append("hang" if "timed out" in str(error) else "damage")
    return _counts(outcomes)


def _durable_maps(forks: int) -> dict[str, int]:
    """Return the counts of a C++ program, compiled with the headers of the package."""
    source = Path(__file__).with_name("forks.cpp")
    flags = ("-std=c++20", "-O1", "-pthread", "-I", headrace.index.include())
    with tempfile.TemporaryDirectory(prefix="headrace-forks-") as folder:
        program = Path(folder) / "forks"
        subprocess.run(["g++", *flags, source, "-o", program], check=True, timeout=_COMPILE_S)
        command = [program, Path(folder) / "map", str(forks)]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_NATIVE_S
        )
    return json.loads(done.stdout)
