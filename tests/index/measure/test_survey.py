"""Encodings: each is as computed one by one, and tells apart what it is for."""

import numpy as np
import pytest

from headrace.index.errors import TraceError
from headrace.index.measure.structure import SCALES, key_structure
from headrace.index.measure.survey import survey_trace
from headrace.index.measure.workload import Workload, workload_trace
from headrace.index.profile import FEATURES, SIDE, TraceEncoding
from headrace.index.trace import ERASE, FIND, INSERT, SCAN, Trace

RANDOM = np.random.default_rng(11)
SMOOTH = np.unique(RANDOM.integers(0, 2**40, 60_000)).astype(np.uint64)


def encoded(keys: np.ndarray, **shares: float) -> TraceEncoding:
    trace = workload_trace(keys, Workload(**shares))  # pyright: ignore[reportArgumentType]
    return survey_trace(trace).encoding


def trace_of(loaded: list[int], *operations: tuple[int, int]) -> Trace:
    return Trace.of(
        np.array([key for _, key in operations], dtype=np.uint64),
        np.array([each for each, _ in operations], dtype=np.uint8),
        np.array(loaded, dtype=np.uint64),
    )


def test_the_image_counts_every_operation() -> None:
    trace = trace_of([0, 255], (FIND, 0), (INSERT, 128), (ERASE, 128), (SCAN, 255))
    image = survey_trace(trace).encoding.image
    assert image.shape == (SIDE, SIDE, 2)
    assert image[0, 0].tolist() == [1, 0]
    assert image[64, 128].tolist() == [0, 1]
    assert image[128, 128].tolist() == [0, 1]
    assert image[192, 255].tolist() == [1, 0]
    assert image.sum() == 4


def test_extreme_keys_have_columns() -> None:
    trace = trace_of([0, 2**64 - 1], (FIND, 0), (FIND, 2**64 - 1), (FIND, 2**63))
    encoding = survey_trace(trace).encoding
    assert encoding.image.sum(axis=(0, 2)).nonzero()[0].tolist() == [0, 128, 255]
    assert encoding.loaded_image[[0, 255]].tolist() == [1, 1]


def test_outliers_mislead_the_image_and_not_the_ranks() -> None:
    """The paper's choice for fb was wrong: a few extreme keys hide all others in one column."""
    outliers = np.concatenate([SMOOTH, 2**63 + np.arange(20, dtype=np.uint64) * np.uint64(2**55)])
    plain, hidden = encoded(SMOOTH), encoded(outliers)
    columns = [each.image.any(axis=(0, 2)).sum() for each in (plain, hidden)]
    assert columns[0] == SIDE
    assert columns[1] < 30
    for name in ("residual10", "residual50", "residual90"):
        found = [each.tables["fits"][name][:5] for each in (plain, hidden)]
        assert np.allclose(found[0], found[1], atol=0.4)
    assert hidden.features["high_tail_log2"] > 20 > 1 > plain.features["high_tail_log2"]


def test_residuals_are_those_of_a_regression() -> None:
    keys = np.sort(RANDOM.integers(0, 2**50, 64)).astype(np.uint64)
    line = np.polynomial.Polynomial.fit(keys.astype(float), np.arange(64), 1)
    residual = np.sqrt(np.mean((np.arange(64) - line(keys.astype(float))) ** 2))
    fits = key_structure(keys)["fits"]
    assert fits["residual50"][SCALES.index(64)] == pytest.approx(np.log2(1 + residual), abs=1e-6)


def test_a_line_has_no_residuals_and_is_even() -> None:
    found = key_structure(np.arange(100_000, dtype=np.uint64) * np.uint64(9))
    assert np.abs(found["fits"]["residual100"]).max() < 1e-3
    assert found["fits"]["even10"].min() > 0.99
    assert found["gaps"]["share"][3] == 1
    assert found["changes"]["share"][0] == 1
    powers = key_structure(np.uint64(2) ** np.arange(64, dtype=np.uint64))
    assert powers["fits"]["residual100"].max() > 3
    assert powers["fits"]["even10"].min() < 0.6


def test_features_of_the_mix() -> None:
    found = survey_trace(
        trace_of(
            [10, 20], (FIND, 10), (FIND, 11), (INSERT, 15), (INSERT, 30), (INSERT, 30), (FIND, 30)
        )
    ).encoding.features
    assert list(found) == list(FEATURES)
    assert found["find_share"] == found["insert_share"] == 0.5
    assert found["missing_share"] == pytest.approx(1 / 3)
    assert found["assign_share"] == pytest.approx(1 / 3)
    assert found["append_share"] == pytest.approx(1 / 3)
    assert found["log2_loaded"] == pytest.approx(np.log2(3))
    assert found["log2_final"] == pytest.approx(np.log2(5))


def test_appends_and_skew_are_seen() -> None:
    keys = np.arange(50_000, dtype=np.uint64)
    appended = survey_trace(workload_trace(keys, Workload(shuffled=False))).encoding
    assert appended.features["append_share"] == 1
    assert encoded(keys).features["append_share"] < 0.01
    even, hot = (encoded(keys, inserts=0.0, skew=skew).tables["hot"] for skew in (0.0, 1.2))
    assert hot["reads"][1] > 0.3 > 0.01 > even["reads"][1]
    assert even["reads"][-1] == pytest.approx(1)


def test_small_traces_are_encoded() -> None:
    for trace in (trace_of([5]), trace_of([], (FIND, 3)), trace_of([0, 1, 2], (INSERT, 3))):
        found = survey_trace(trace).encoding
        assert all(np.isfinite(value) for value in found.features.values())
    with pytest.raises(TraceError, match="no keys and no operations"):
        survey_trace(trace_of([]))
