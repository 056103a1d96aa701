"""Workloads of the index benchmark: every operation finds the map as the benchmark expects it."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.index.cells import MIXES
from benchmarks.index.datasets import generate
from benchmarks.index.maps import totals, wrong_answers
from benchmarks.index.workload import ERASE, INSERT, MISS, Mix, Workload, arrivals_needed, make

LOADED = 2000
OPERATIONS = 6000


def made(mix: Mix, *, hot: bool = False, seed: int = 0) -> Workload:
    phases = [(OPERATIONS, mix)]
    codes = generate("osm", arrivals_needed(LOADED, phases), seed)
    return make(codes, loaded=LOADED, phases=phases, seed=seed, hot=hot)


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("mix", MIXES)
def test_operations_are_what_they_are_called(mix: str, hot: bool) -> None:
    workload = made(MIXES[mix], hot=hot)
    present = set(workload.loaded.tolist())
    for operation, code in zip(workload.operations.tolist(), workload.codes.tolist(), strict=True):
        assert (code in present) == (operation not in (INSERT, MISS))
        if operation == INSERT:
            present.add(code)
        elif operation == ERASE:
            present.remove(code)


def test_inserted_codes_are_never_erased() -> None:
    workload = made(MIXES["erases"])
    erased = workload.codes[workload.operations == ERASE]
    assert len(erased) > 0
    assert not np.isin(erased, workload.codes[workload.operations == INSERT]).any()


def test_shares_are_those_of_the_mix() -> None:
    mix = MIXES["erases"]
    shares = np.bincount(made(mix).operations, minlength=5) / OPERATIONS
    wanted = [1 - mix.inserts - mix.erases - mix.misses, mix.inserts, mix.erases, 0, mix.misses]
    np.testing.assert_allclose(shares, wanted, atol=0.03)


def test_hot_finds_are_skewed() -> None:
    def most_frequent(*, hot: bool) -> int:
        return int(np.unique(made(Mix(), hot=hot).codes, return_counts=True)[1].max())

    assert most_frequent(hot=True) > 10 * most_frequent(hot=False)


def test_phases_follow_each_other() -> None:
    phases = [(1000, Mix()), (1000, Mix(inserts=1.0))]
    codes = generate("fb", arrivals_needed(LOADED, phases))
    operations = make(codes, loaded=LOADED, phases=phases).operations
    assert not (operations[:1000] == INSERT).any()
    assert (operations[1000:] == INSERT).all()


def test_too_few_codes_are_refused() -> None:
    with pytest.raises(ValueError, match="2001 codes arrive and 2000 are loaded, needs at least 2"):
        make(generate("fb", 2001), loaded=2000, phases=[(100, Mix(inserts=1.0))])


def test_file_has_all_columns(tmp_path: Path) -> None:
    workload = made(Mix(inserts=0.5))
    words = np.fromfile(workload.write(tmp_path / "w"), dtype=np.uint8)
    header, rest = words[:24].view(np.uint64), words[24:]
    assert header.tolist() == [0x31786469636E6562, LOADED, OPERATIONS]
    codes = rest[: 8 * (LOADED + OPERATIONS)].view(np.uint64)
    np.testing.assert_array_equal(codes, np.concatenate([workload.loaded, workload.codes]))
    np.testing.assert_array_equal(rest[8 * (LOADED + OPERATIONS) :], workload.operations)


def test_scans_of_other_keys_are_wrong() -> None:
    answer = {"operations": 5, "ns": 1, "cpu_ns": 1, "wrong": 0, "checksum": 2**64 - 1}
    sums = totals([answer, {**answer, "checksum": 3}])
    assert sums["checksum"] == 2
    assert wrong_answers({"absl": sums, "headrace": sums}) == 0
    assert wrong_answers({"absl": sums, "headrace": {**sums, "checksum": 4}}) == 1
    assert wrong_answers({"absl": {**sums, "wrong": 7}, "headrace log": {**sums, "wrong": 2}}) == 2
