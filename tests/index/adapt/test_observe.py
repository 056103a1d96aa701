"""Observations of a live index: what was done since the last one, and how."""

import numpy as np

from headrace.index.adapt.observe import ActivityObserver
from headrace.index.run.index import Index


def test_batches_are_told_from_operations_by_themselves() -> None:
    keys = np.arange(4000, dtype=np.uint64)
    index = Index(keys, keys)
    observer = ActivityObserver(index)
    index.find(keys)
    assert observer.look().in_batches
    for key in range(3000):
        assert index[key] == key
    seen = observer.look()
    assert seen.counts == (3000, 0, 0, 0)
    assert not seen.in_batches
    for first in range(500):
        index.scan(first, 10)
    index.insert(keys[:100] + 5000, keys[:100])
    assert observer.look().in_batches
