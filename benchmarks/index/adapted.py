"""An index that adapts while its mix changes: KEYS LOADED SECONDS; prints an object of JSON.

The number of keys stays: what is inserted was erased before. Each phase lasts SECONDS, of which the
rate of the last half second counts (the first is the time that adaptation has). The best is that of
fixed configurations, each of which runs the same phase on the same keys; its rate is that of a
second run, as the highest of several rates is one that was measured too high.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.index.cells import arrivals
from headrace.index.adapt.agent import IndexAdaptation
from headrace.index.configuration import Configuration
from headrace.index.run.index import Index

_PHASES: Mapping[str, Mapping[str, float]] = {
    "read-only": {"find": 1.0},
    "write-only": {"change": 1.0},
    "scans": {"scan": 0.9, "find": 0.1},
    "read-heavy": {"find": 0.85, "change": 0.15},
}
"""Shares of finds, of scans of 100, and of changes: an insertion and an erasure each."""

_FIXED = (
    Configuration(leaf="hashed"),
    Configuration(leaf="hashed", fragment_keys=128, fill=0.6),
    Configuration(leaf="hashed", fragment_keys=256, fill=0.75),
    Configuration(leaf="log", fragment_keys=128),
    Configuration(leaf="log", fragment_keys=256),
    Configuration(leaf="gapped", leaf_keys=1024, fill=0.75),
    Configuration(leaf="gapped", fill=0.75),
)
_BATCH = 4096
_SCANS = 64
_WARM_S = 0.3
_WINDOW_S = 0.5


def _value(keys: np.ndarray) -> np.ndarray:
    return keys * np.uint64(0x9E3779B97F4A7C15)


@dataclass(slots=True)
class Stream:
    """Operations on an index that holds `size` of the `pool`, from place `first` on, cyclically."""

    pool: np.ndarray
    size: int
    first: int = 0
    wrong: int = 0
    spent_s: float = 0.0
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(2))

    def run(self, index: Index, shares: Mapping[str, float], seconds: float) -> list[float]:
        """Return operations a second of time in the index, in windows of half a second."""
        rates: list[float] = []
        began = time.perf_counter()
        done, self.spent_s, window = 0, 0.0, began
        while (now := time.perf_counter()) - began < seconds:
            if now - window >= _WINDOW_S:
                rates.append(done / self.spent_s)
                done, self.spent_s, window = 0, 0.0, now
            done += self._step(index, shares)
        return [*rates, done / self.spent_s] if done else rates

    def _step(self, index: Index, shares: Mapping[str, float]) -> int:
        scans = _SCANS if shares.get("scan") else 0
        scale = scans / shares["scan"] if scans else _BATCH
        finds = round(scale * shares.get("find", 0.0))
        changes = round(scale * shares.get("change", 0.0) / 2)
        if finds:
            asked = self._present(finds)
            values, found = self._timed(index.find, asked)
            self.wrong += int((~found | (values != _value(asked))).sum())
        for first in self._present(scans).tolist():
            codes, _ = self._timed(index.scan, first, 100)
            self.wrong += codes[0] != first
        if changes:
            places = (self.first + np.arange(changes)) % len(self.pool)
            self.wrong += changes - self._timed(index.erase, self.pool[places])
            added = self.pool[(places + self.size) % len(self.pool)]
            self.wrong += changes - self._timed(index.insert, added, _value(added))
            self.first = (self.first + changes) % len(self.pool)
        return finds + scans + 2 * changes

    def _timed(self, call: Callable[..., Any], *given: Any) -> Any:
        began = time.perf_counter()
        result = call(*given)
        self.spent_s += time.perf_counter() - began
        return result

    def _present(self, count: int) -> np.ndarray:
        places = self.first + self.random.integers(0, self.size, count)
        return self.pool[places % len(self.pool)]

    def present(self) -> np.ndarray:
        """Return the keys that are in the index."""
        return self.pool[(self.first + np.arange(self.size)) % len(self.pool)]


def _best(stream: Stream, shares: Mapping[str, float]) -> tuple[str, float]:
    """Return the fastest fixed configuration in a phase, and its rate."""
    rates = [_fixed_per_s(stream, shares, each) for each in _FIXED]
    best = _FIXED[int(np.argmax(rates))]
    return best.name, _fixed_per_s(stream, shares, best)


def _fixed_per_s(
    stream: Stream, shares: Mapping[str, float], configuration: Configuration
) -> float:
    again = Stream(pool=stream.pool, size=stream.size, first=stream.first)
    keys = again.present()
    index = Index(keys, _value(keys), configuration=configuration)
    per_s = again.run(index, shares, _WARM_S + _WINDOW_S)[-1]
    stream.wrong += again.wrong
    return per_s


def main(name: str, loaded: int, seconds: float) -> None:
    stream = Stream(pool=arrivals(name, 2 * loaded), size=loaded)
    keys = stream.present()
    index = Index(keys, _value(keys))
    rows: list[dict[str, Any]] = []
    began = time.time()
    with IndexAdaptation(index) as adaptation:
        for phase, shares in _PHASES.items():
            rates = stream.run(index, shares, seconds)
            rows.append({"phase": phase, "rates": rates, "first": stream.first})
        events = list(adaptation.records.events)
        rows[-1]["conversions"] = adaptation.conversions
    del index
    for row in rows:
        stream.first = row.pop("first")
        row["best"], row["best_per_s"] = _best(stream, _PHASES[row["phase"]])
    events = [{**each, "at": round(each["at"] - began, 3)} for each in events]
    print(json.dumps({"rows": rows, "wrong": int(stream.wrong), "events": events}, default=str))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
