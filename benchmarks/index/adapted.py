"""An index that adapts while its mix changes: KEYS LOADED SECONDS; prints an object of JSON.

The number of keys stays: what is inserted was erased before. Each phase lasts SECONDS: the time
that adaptation has. Then the index and the best fixed configuration of that phase take turns on
the same keys and operations: rates of separate runs differ by more than indexes do, where other
work on the machine slows some. The best is picked before, from turns of all on the first keys, as
the highest of several rates is one that was measured too high.
"""

import copy
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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
            done += self.step(index, shares)
        return [*rates, done / self.spent_s] if done else rates

    def step(self, index: Index, shares: Mapping[str, float]) -> int:
        """Run some thousand operations, or some scans; returns their number."""
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


def _by_turns(
    streams: Sequence[Stream], indexes: Sequence[Index], shares: Mapping[str, float], seconds: float
) -> list[float]:
    """Return operations a second of indexes that take turns, each with `seconds` of its calls."""
    operations = [0] * len(indexes)
    for stream in streams:
        stream.spent_s = 0.0
    while min(stream.spent_s for stream in streams) < seconds:
        for number, (stream, index) in enumerate(zip(streams, indexes, strict=True)):
            operations[number] += stream.step(index, shares)
    return [count / stream.spent_s for count, stream in zip(operations, streams, strict=True)]


def _fixed(
    stream: Stream, shares: Mapping[str, float], configuration: Configuration
) -> tuple[Stream, Index]:
    """Return an index of the stream's keys, in use for some time, and its copy of the stream."""
    own = copy.copy(stream)
    own.random, own.wrong = copy.deepcopy(stream.random), 0
    keys = own.present()
    index = Index(keys, _value(keys), configuration=configuration)
    own.run(index, shares, _WARM_S)
    return own, index


def _best(stream: Stream, shares: Mapping[str, float]) -> Configuration:
    """Return the fastest of the fixed configurations in a phase."""
    streams, indexes = zip(*(_fixed(stream, shares, each) for each in _FIXED), strict=True)
    rates = _by_turns(streams, indexes, shares, _WINDOW_S)
    stream.wrong += sum(own.wrong for own in streams)
    return _FIXED[int(np.argmax(rates))]


def main(name: str, loaded: int, seconds: float) -> None:
    stream = Stream(pool=arrivals(name, 2 * loaded), size=loaded)
    best = {phase: _best(stream, shares) for phase, shares in _PHASES.items()}
    keys = stream.present()
    index = Index(keys, _value(keys))
    rows: list[dict[str, Any]] = []
    began = time.time()
    with IndexAdaptation(index) as adaptation:
        for phase, shares in _PHASES.items():
            rates = stream.run(index, shares, seconds)
            conversions = adaptation.conversions
            own, fixed = _fixed(stream, shares, best[phase])
            per_s, best_per_s = _by_turns([stream, own], [index, fixed], shares, _WINDOW_S)
            stream.wrong += own.wrong
            rows.append(
                {
                    "phase": phase,
                    "rates": rates,
                    "per_s": per_s,
                    "best": best[phase].name,
                    "best_per_s": best_per_s,
                    "late_conversions": adaptation.conversions - conversions,
                }
            )
            del fixed
        events = list(adaptation.records.events)
        rows[-1]["conversions"] = adaptation.conversions
    events = [{**event, "at": round(event["at"] - began, 3)} for event in events]
    print(json.dumps({"rows": rows, "wrong": int(stream.wrong), "events": events}, default=str))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
