"""Memory of a store of rows, in a process of its own: ``python -m ... ROWS DIM hashed|dense``."""

import json
import sys
import time

import numpy as np

from headrace import _native

_CALL = 65_536


def main(rows: int, dim: int, *, hashed: bool) -> None:
    """Create rows in no order, and write figures as JSON."""
    ids = np.random.default_rng(0).permutation(rows)
    if hashed:  # spread over 63 bits
        ids = (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(1)).view(np.int64)
    values = np.zeros((_CALL, dim), np.float32)
    before = _resident_bytes()
    memory = _native.RowMemory((1 << 64) - 1)
    table = _native.RowTable(
        name="rows", number=0, rows=0 if hashed else rows, distribution="uniform", scale=0.1
    )
    store = _native.RowStore([table], dim=dim, memory=memory)
    began = time.process_time()
    for start in range(0, rows, _CALL):
        part = ids[start : start + _CALL]
        store.fetch(part, np.array([len(part)]), values[: len(part)])
    created_s = time.process_time() - began
    if store.rows(0) != rows:
        raise ArithmeticError(f"{store.rows(0)} rows instead of {rows}")
    figures = {
        "counted_bytes": memory.bytes,
        "resident_bytes": _resident_bytes() - before,
        "created_ns": 1e9 * created_s / rows,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


def _resident_bytes() -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), hashed=sys.argv[3] == "hashed")
