"""Samples: the mix, the growth and the distances of neighbours stay."""

import numpy as np
import pytest

from headrace.index.measure.sample import fewer_finds, sample_trace
from headrace.index.measure.workload import Workload, workload_trace
from headrace.index.trace import INSERT, Trace


def sampled(keys: np.ndarray, most: int, **shares: float) -> tuple[Trace, Trace]:
    trace = workload_trace(keys, Workload(**shares))  # pyright: ignore[reportArgumentType]
    return trace, sample_trace(trace, most)


def held(trace: Trace) -> np.ndarray:
    inserted = trace.keys[trace.operations == INSERT]
    return np.unique(np.concatenate([trace.loaded, inserted]))


def test_a_short_trace_is_its_own_sample() -> None:
    trace, sample = sampled(np.arange(1000, dtype=np.uint64), 5000)
    assert sample is trace


def test_a_sequence_stays_a_sequence() -> None:
    """Every tenth key at random would have gaps like a Poisson process."""
    _, sample = sampled(np.arange(400_000, dtype=np.uint64) * np.uint64(5), 80_000)
    gaps = np.diff(held(sample))
    assert (gaps == 5).mean() > 0.99


def test_mix_growth_and_hits_stay() -> None:
    keys = np.unique(np.random.default_rng(1).lognormal(30, 2, 400_000).astype(np.uint64))
    trace, sample = sampled(keys, 100_000, inserts=0.3, erases=0.1, missing=0.2)
    assert 70_000 < len(sample.loaded) + len(sample) < 130_000
    for name, share in trace.shares.items():
        assert sample.shares[name] == pytest.approx(share, abs=0.02)
    growth = [each.final_size() / len(each.loaded) for each in (trace, sample)]
    assert growth[1] == pytest.approx(growth[0], rel=0.03)


def test_more_keys_are_sampled_where_none_changes() -> None:
    keys = np.arange(400_000, dtype=np.uint64) * np.uint64(5)
    trace, sample = sampled(keys, 100_000, inserts=0.0)
    more = sample_trace(fewer_finds(trace, 100_000), 100_000)
    assert len(sample.loaded) * 1.5 < len(more.loaded)
    assert 90_000 < len(more.loaded) + len(more) < 110_000
    assert 15_000 < len(more) < 25_000
    assert np.isin(more.keys, more.loaded).all()
    changing, _ = sampled(keys, 100_000, inserts=0.01)
    assert fewer_finds(changing, 100_000) is changing
    short, _ = sampled(keys[:1000], 100_000, inserts=0.0)
    assert fewer_finds(short, 100_000) is short


def test_outliers_stay() -> None:
    keys = np.concatenate([np.arange(400_000), 2**62 + np.arange(20) * 2**40]).astype(np.uint64)
    _, sample = sampled(keys, 50_000)
    codes = held(sample)
    assert 10 <= (codes > 2**50).sum() <= 20
    assert codes[-1] - codes[0] > 2**62


def test_equal_seeds_give_equal_samples() -> None:
    trace, sample = sampled(np.arange(100_000, dtype=np.uint64), 20_000)
    again = sample_trace(trace, 20_000)
    assert np.array_equal(again.keys, sample.keys)
    assert not np.array_equal(sample_trace(trace, 20_000, seed=1).keys[:100], sample.keys[:100])
