"""An ordered map from keys to rows that is fast to read and to write: one line.

    python examples/07-index.py
    python examples/07-index.py index.plan   # a plan of `headrace index plan`

docs/index.md says how a plan is made of a recorded workload.
"""

import sys
import time

import numpy as np

import headrace
from headrace.index import TraceRecorder

KEYS = 1_000_000
BATCH = 65_536


def main() -> None:
    """Load an index, look up and insert arrays, and record what was done."""
    random = np.random.default_rng(0)
    keys = np.unique(random.integers(0, 2**63, KEYS, np.uint64))
    rows = np.arange(len(keys), dtype=np.uint32)

    plan = sys.argv[1] if len(sys.argv) > 1 else None
    index = headrace.Index(keys, rows, plan=plan)  # the one line
    print(index)

    wanted = random.choice(keys, BATCH)
    began = time.perf_counter()
    found = index[wanted]
    taken_ns = (time.perf_counter() - began) * 1e9
    print(f"{BATCH} keys found in {taken_ns / BATCH:.0f} ns each")
    assert np.array_equal(keys[found], wanted)

    with TraceRecorder(index) as recorder:
        fresh = random.integers(0, 2**63, BATCH, np.uint64)
        print(f"{index.insert(fresh, 0)} keys inserted, now {len(index)}")
        values, there = index.find(np.append(fresh, np.uint64(1)), default=7)
        print(f"{there.sum()} of {len(there)} found; the last value is {values[-1]}")
    print(f"recorded: {len(recorder.trace)} operations on {recorder.share:.0%} of the keys")

    low, high = np.quantile(keys, [0.5, 0.501]).astype(np.uint64)
    between, _ = index.range(low, high)
    print(f"{len(between)} keys from {low} to below {high}, in order")
    print(f"erased: {index.erase(between)}, least key: {index.min()}")
    print(f"{index.nbytes / len(index):.1f} bytes a key")


if __name__ == "__main__":
    main()
