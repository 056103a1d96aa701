"""Logs of a server's rows: what is in memory before a commit."""

from pathlib import Path

import numpy as np

from headrace import _native
from headrace.embeddings import TableGroup
from headrace.embeddings.run.servers.row_logs import RowLogs

DIM = 1 << 18
"""A row has 1 MB."""


def test_many_rows_are_in_the_logs_before_their_commit(tmp_path: Path) -> None:
    """All were in memory, which no limit counted: a table that was loaded took twice its bytes."""
    table = _native.RowTable(name="items", number=0, rows=99, distribution="constant", scale=0.0)
    store = _native.RowStore([table], dim=DIM, memory=_native.RowMemory(1 << 40))
    group = TableGroup(tables=(0,), dim=DIM)
    logs = RowLogs(tmp_path, 2, 0, 1, [store], [group], committed=None, first_commit=5)
    (log,) = tmp_path.rglob("changes-0")
    row, end = np.zeros((1, DIM), np.float32), np.array([1])
    for number in range(60):
        logs.put(5, 0, np.array([number]), end, row)
    assert log.stat().st_size < 1 << 20
    for number in range(10):
        logs.put(5, 0, np.array([number]), end, row)
    assert log.stat().st_size > 60 << 20
    logs.close()
