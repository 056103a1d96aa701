"""Caches: their room, and rows by slot."""

import numpy as np
import torch

from headrace.embeddings import TableGroup
from headrace.embeddings.run.trainers.cache import HostCopies, RowCache

GROUP = TableGroup(tables=(0,), dim=3, state=1, dtype="float64")


def test_a_cache_has_the_bytes_of_rows_with_their_state() -> None:
    assert RowCache(GROUP, 3, torch.device("cpu")).nbytes == 96


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
