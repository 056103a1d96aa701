"""The sample of a trace that is encoded and run: some blocks of neighbouring keys, whole.

A key that is kept has all of its operations, in order, so the mix, the growth and the hits of
lookups stay. Keys are kept by blocks of neighbours, with the space between blocks closed up: every
thousandth key of a sequence would look random, and a leaf of one would have nothing to learn.
"""

from dataclasses import replace

import numpy as np

from headrace.index.trace import ERASE, INSERT, Trace, distinct

BLOCK_KEYS = 4096
"""Neighbouring keys that are kept or left out together: about a leaf."""

_UNCHANGING = 0.2
"""Share of operations in a sample of finds and scans: 800,000 of four million take long enough for
a processor's clock, a tenth of a second."""

_BOUNDS_FROM = 1 << 20
"""Keys of which the blocks' bounds are taken."""


def sample_trace(trace: Trace, most: int, seed: int = 0) -> Trace:
    """Return about `most` loaded keys and operations of a trace; the trace itself if it has fewer.

    One block of every few is kept, at random, and the outermost two, which may hold outliers.
    """
    total = len(trace.loaded) + len(trace)
    if total <= most:
        return trace
    random = np.random.default_rng(seed)
    bounds = _bounds(trace, random)
    selected = _selected_blocks(len(bounds), most / total, random)
    spans = np.diff(np.append(bounds, np.uint64((1 << 64) - 1)))
    removed = np.cumsum(np.where(selected, np.uint64(0), spans))
    shift = np.concatenate([np.zeros(1, dtype=np.uint64), removed[:-1]])

    def part(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        block = np.searchsorted(bounds, codes, side="right").clip(1) - 1
        inside = selected[block]
        return codes[inside] - shift[block[inside]], inside

    loaded, _ = part(trace.loaded)
    keys, inside = part(trace.keys)
    operations = trace.operations[inside]
    # closed up, codes stand for no double any more; hot blocks can hold more operations than wanted
    return Trace(loaded=loaded, operations=operations[:most], keys=keys[:most], kind="uint64")


def fewer_finds(trace: Trace, most: int) -> Trace:
    """Return a trace whose sample of `most` has more keys, if it has finds and scans alone.

    Few of these do as well, while fewer keys favour what fits into caches that do not hold all.
    Another trace is returned as it is.
    """
    few = round(max(most, len(trace.loaded) / (1 - _UNCHANGING)) * _UNCHANGING)
    changes = np.isin(trace.operations, (INSERT, ERASE)).any()
    if changes or len(trace) <= few or len(trace.loaded) + len(trace) <= most:
        return trace
    every = np.linspace(0, len(trace), few, endpoint=False).astype(np.int64)
    return replace(trace, operations=trace.operations[every], keys=trace.keys[every])


def _bounds(trace: Trace, random: np.random.Generator) -> np.ndarray:
    """Return the first code of each block, ascending, the first of all included."""
    parts = [trace.loaded, trace.keys]
    total = sum(map(len, parts))
    drawn = np.concatenate(
        [
            _drawn(codes, min(len(codes), _BOUNDS_FROM * len(codes) // total + 1), random)
            for codes in parts
        ]
    )
    keys = distinct(drawn)
    blocks = min(max(len(keys) * (total // len(drawn)) // BLOCK_KEYS, 8), len(keys))
    bounds = keys[np.linspace(0, len(keys), blocks, endpoint=False).astype(np.int64)]
    bounds[0] = min(int(codes.min()) for codes in parts if len(codes))
    return bounds


def _drawn(codes: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    return codes[random.integers(0, len(codes), count)] if len(codes) else codes


def _selected_blocks(blocks: int, share: float, random: np.random.Generator) -> np.ndarray:
    """Return which blocks are kept: one at random of each run of 1 / share."""
    selected = np.zeros(blocks, dtype=bool)
    starts = np.arange(max(round(blocks * share), 1)) / share
    drawn = (starts + random.random(len(starts)) / share).astype(np.int64)
    selected[drawn.clip(0, blocks - 1)] = True
    selected[[0, -1]] = True
    return selected
