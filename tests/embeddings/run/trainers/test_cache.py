"""Caches: their room, and rows by slot."""

import numpy as np
import pytest
import torch

from headrace.embeddings import EmbeddingError, TableGroup
from headrace.embeddings.run.trainers.cache import HostCopies, RowCache, cache_slots

GROUP = TableGroup(tables=(0,), dim=3, state=1, dtype="float64")


def test_a_cache_has_room_for_rows_with_their_state() -> None:
    assert cache_slots(GROUP, 99) == 3
    assert RowCache(GROUP, 3, torch.device("cpu")).nbytes == 96
    with pytest.raises(EmbeddingError, match="31 bytes has no room for a row of 32 bytes"):
        cache_slots(GROUP, 31)


def test_rows_are_written_and_read_by_slot() -> None:
    cache = RowCache(GROUP, 4, torch.device("cpu"))
    rows = np.arange(8.0).reshape(2, 4)
    rows.flags.writeable = False  # as a message's
    copies = HostCopies(torch.device("cpu"), own_stream=True)
    slots = torch.tensor([3, 1])
    with copies.beside():
        cache.write(slots, copies.from_host(rows))
    assert cache.read(slots).tolist() == rows.tolist()
    assert cache.numbers(slots).tolist() == rows[:, :3].tolist()
    assert cache.rows[[0, 2]].abs().sum() == 0
