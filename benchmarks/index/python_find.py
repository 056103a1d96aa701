"""One data set of the section `python`: KEYS LOADED BATCHES; prints an object of JSON."""

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from benchmarks.index.cells import BATCH, arrivals
from headrace.index.run.index import Index


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = action()
    return time.perf_counter() - begun, result


def main(name: str, loaded: int, batches: int) -> None:
    keys = np.sort(arrivals(name, loaded))
    values = keys * np.uint64(0x9E3779B97F4A7C15)
    index = Index(keys, values)
    random = np.random.default_rng(1)
    times: dict[str, list[float]] = {"headrace": [], "searchsorted": [], "with_values": []}
    wrong = 0

    def looked_up(asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = np.minimum(np.searchsorted(keys, asked), loaded - 1)
        return values[at], keys[at] == asked

    for _ in range(batches):
        asked = keys[random.integers(0, loaded, BATCH)]
        asked[random.integers(0, BATCH, BATCH // 100)] += np.uint64(1)  # mostly not there
        taken, (ours, found) = _timed(lambda asked=asked: index.find(asked))
        times["headrace"].append(taken)
        times["searchsorted"].append(_timed(lambda asked=asked: np.searchsorted(keys, asked))[0])
        taken, (expected, present) = _timed(lambda asked=asked: looked_up(asked))
        times["with_values"].append(taken)
        wrong += int((found != present).sum() + (ours[present] != expected[present]).sum())
    pairs = zip(times["searchsorted"], times["headrace"], strict=True)
    result = {each: 1e9 * median(taken) / BATCH for each, taken in times.items()}
    print(json.dumps({**result, "ratio": median(a / b for a, b in pairs), "wrong": wrong}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
