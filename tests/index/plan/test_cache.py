"""Sizes that fit into one machine's cache and not into that of the model's training are stated."""

from dataclasses import replace
from typing import Any

import pytest

from headrace.index.plan.cache import cache_text
from headrace.index.plan.choose import plan
from headrace.index.plan.model import TRAINED_CACHE_BYTES
from headrace.index.plan.plan import IndexPlan
from tests.index.plan.models import FakeTrials, profile, random_model

LARGE = 105 << 20


@pytest.fixture(scope="module")
def small_plan() -> IndexPlan:
    return plan(profile(), model=random_model(), trial=FakeTrials(lambda _: 1e6), top=1)


def text_of(small: IndexPlan, keys_log2: float, **provenance: Any) -> str | None:
    """The text for an index of 20 bytes a key."""
    features = {**small.encoding.features, "log2_final": keys_log2}
    return cache_text(
        replace(
            small,
            encoding=replace(small.encoding, features=features),
            provenance={"model": {}, **provenance},
        )
    )


def test_sizes_between_the_two_caches_are_stated(small_plan: IndexPlan) -> None:
    text = text_of(small_plan, 21.0, last_level_cache_bytes=LARGE)
    assert text is not None
    assert text.startswith("The index (40 MiB) fits into this machine's last-level cache (105 MiB)")
    assert "training of the throughput model (32 MiB)" in text
    assert "as if its keys came from memory" in text
    assert text.endswith("trials on this machine decided.")
    smaller = text_of(small_plan, 20.0, last_level_cache_bytes=8 << 20)
    assert smaller is not None
    assert "(20 MiB) does not fit into this" in smaller
    assert "came from the cache" in smaller
    trained = {"last_level_cache_bytes": 2 * LARGE}
    assert text_of(small_plan, 23.0, last_level_cache_bytes=LARGE, model=trained) is not None


def test_without_trials_they_are_recommended(small_plan: IndexPlan) -> None:
    chosen = replace(small_plan.chosen, trials=0, predicted_bytes_per_key=20.0)
    text = text_of(replace(small_plan, candidates=(chosen,)), 21.0, last_level_cache_bytes=LARGE)
    assert text is not None
    assert text.endswith("plan with trials to have this machine decide.")


def test_other_sizes_and_unknown_caches_are_not(small_plan: IndexPlan) -> None:
    for keys_log2 in (10.0, 30.0, 1e9):
        assert text_of(small_plan, keys_log2, last_level_cache_bytes=LARGE) is None
    assert text_of(small_plan, 21.0, last_level_cache_bytes=TRAINED_CACHE_BYTES) is None
    assert text_of(small_plan, 21.0) is None
    assert text_of(small_plan, 21.0, last_level_cache_bytes=None) is None
    assert text_of(small_plan, 21.0, last_level_cache_bytes=LARGE, model="none") is None
