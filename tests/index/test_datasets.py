"""The benchmark's key sets: unique, seeded, and distributed as their names promise."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.index.datasets import NAMES, generate

COUNT = 50_000
LARGEST = np.uint64(2**64 - 1)


@pytest.mark.parametrize("name", NAMES)
def test_codes_are_unique_and_repeat_by_seed(name: str) -> None:
    codes = generate(name, COUNT, seed=3)
    assert codes.dtype == np.uint64
    assert len(np.unique(codes)) == len(codes) == COUNT
    np.testing.assert_array_equal(codes, generate(name, COUNT, seed=3))
    assert not np.array_equal(codes, generate(name, COUNT, seed=4))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_small_sets(name: str, count: int) -> None:
    assert len(np.unique(generate(name, count))) == count


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gaps"])
def test_codes_arrive_unsorted(name: str) -> None:
    rises = np.diff(generate(name, COUNT).astype(np.float64)) > 0
    assert 0.4 < rises.mean() < 0.6


def test_time_stamps_arrive_in_order() -> None:
    codes = generate("gaps", COUNT)
    steps = np.diff(codes)
    assert (codes[1:] > codes[:-1]).all()
    assert 0.9 < (steps == 1).mean() < 0.97


def test_fb_has_a_few_huge_outliers() -> None:
    codes = np.sort(generate("fb", COUNT))
    assert (codes >= np.uint64(2**40)).sum() == 21
    ordinary = codes[:-21].astype(np.float64)
    line = np.polyfit(np.arange(len(ordinary)), ordinary, 1)
    errors = ordinary - np.polyval(line, np.arange(len(ordinary)))
    assert np.abs(errors).max() < 0.1 * ordinary[-1]


def test_books_are_log_normal() -> None:
    logarithms = np.log(generate("books", COUNT).astype(np.float64))
    assert logarithms.std() == pytest.approx(1.0, rel=0.05)
    assert np.median(logarithms) == pytest.approx(logarithms.mean(), abs=0.05)


def test_osm_is_clustered() -> None:
    """Most of the key space holds next to nothing, unlike for uniform keys."""

    def occupied(name: str) -> int:
        return len(np.unique(generate(name, COUNT) >> np.uint64(64 - 16)))

    assert occupied("osm") < 0.6 * occupied("uniform")


def test_adversarial_reaches_both_ends() -> None:
    codes = np.sort(generate("adversarial", COUNT))
    assert codes[0] == 0
    assert codes[-1] == LARGEST
    above = codes[(codes > np.uint64(2**53)) & (codes < LARGEST - np.uint64(COUNT))]
    assert (np.diff(above) == 1).mean() > 0.3


def test_files_of_sosd_are_sampled(tmp_path: Path) -> None:
    keys = np.arange(10, 1010, dtype=np.uint64)
    file = tmp_path / "books_200M_uint64"
    file.write_bytes(np.uint64(len(keys)).tobytes() + keys.tobytes())
    codes = generate("books", 500, sosd=tmp_path)
    assert len(np.unique(codes)) == 500
    assert set(codes) <= set(keys)
    with pytest.raises(ValueError, match="1000 unique keys, needs at least 1001"):
        generate("books", 1001, sosd=tmp_path)
    assert len(generate("fb", 500, sosd=tmp_path)) == 500  # no file: the imitation


def test_unknown_set() -> None:
    with pytest.raises(ValueError, match="needs one of"):
        generate("wiki", 10)
