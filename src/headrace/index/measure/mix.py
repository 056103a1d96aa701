"""Features of the operations: their shares, skew, and where in the order of keys they are."""

import numpy as np

from headrace.artifact import Table
from headrace.index.profile import FEATURES
from headrace.index.trace import FIND, INSERT, SCAN, Trace

TOPS = (1, 16, 256, 4096, 65536)
RANK_BINS = 32
NEAR_RANKS = 4096

_MOST = 1 << 18
"""Operations that ranks are found for."""


def operation_features(trace: Trace, whole: Trace, keys: np.ndarray) -> dict[str, float]:
    """Return `FEATURES` of a sample of the trace `whole`; `keys` are its distinct codes, ascending.

    Shares of all operations: the four kinds. Of the finds: `missing_share`, of keys that never were
    there. Of the inserts: `assign_share`, of keys that were; `append_share`, beyond the greatest
    key. `near_share`: of operations within `NEAR_RANKS` keys of the one before. `log2_...`: of the
    number of keys loaded, operations, and keys at the end, of the whole trace, by the sample's
    growth. `..._tail_log2`: of 1 + the distance from the outermost key to the outer thousandth,
    over the range between the thousandths.
    """
    shares = whole.shares
    present = _present(trace)
    finds, inserts = trace.operations == FIND, trace.operations == INSERT
    growth = trace.final_size() / max(len(trace.loaded), 1)
    final = growth * len(whole.loaded) if len(trace.loaded) else trace.final_size()
    values = (
        *shares.values(),
        _share(~present[finds]),
        _share(present[inserts]),
        _share(_beyond(trace, inserts)),
        _near(trace, keys),
        *(float(np.log2(1 + each)) for each in (len(whole.loaded), len(whole), final)),
        *_tails(keys),
    )
    return dict(zip(FEATURES, map(float, values), strict=True))


def skew_tables(trace: Trace, keys: np.ndarray) -> dict[str, Table]:
    """Return the hot keys and the ranks of operations.

    "hot": the share of reads and of writes that are of the `TOPS` most frequent keys. "ranks": the
    shares of reads and of writes by rank, in `RANK_BINS` equal parts of `keys`.
    """
    reads = (trace.operations == FIND) | (trace.operations == SCAN)
    parts = {"reads": trace.keys[reads], "writes": trace.keys[~reads]}
    hot = {"keys": np.array(TOPS, dtype=np.int32)}
    return {
        "hot": hot | {name: _hot_shares(each) for name, each in parts.items()},
        "ranks": {name: _rank_shares(each, keys) for name, each in parts.items()},
    }


def _share(flags: np.ndarray) -> float:
    return float(flags.mean()) if len(flags) else 0.0


def _present(trace: Trace) -> np.ndarray:
    """Return of each operation whether its key was there or inserted before; erases are ignored."""
    inserts = np.flatnonzero(trace.operations == INSERT)
    keys, first = np.unique(trace.keys[inserts], return_index=True)
    found = np.isin(trace.keys, trace.loaded)
    if len(keys):
        place = np.searchsorted(keys, trace.keys).clip(0, len(keys) - 1)
        earlier = inserts[first][place] < np.arange(len(trace))
        found |= (keys[place] == trace.keys) & earlier
    return found


def _beyond(trace: Trace, inserts: np.ndarray) -> np.ndarray:
    """Return of each insert whether its key is above all that were loaded or inserted before."""
    keys = trace.keys[inserts]
    start = trace.loaded.max() if len(trace.loaded) else np.uint64(0)
    highest = np.maximum.accumulate(np.concatenate([[start], keys]))
    return keys > highest[:-1]


def _near(trace: Trace, keys: np.ndarray) -> float:
    ranks = np.searchsorted(keys, trace.keys[:_MOST])
    return _share(np.abs(np.diff(ranks)) < NEAR_RANKS) if len(keys) > NEAR_RANKS else 1.0


def _tails(keys: np.ndarray) -> tuple[float, float]:
    if len(keys) < 2:
        return 0.0, 0.0
    outer = len(keys) // 1000
    low, high = int(keys[outer]), int(keys[-1 - outer])
    bulk = max(high - low, 1)
    least, greatest = int(keys[0]), int(keys[-1])
    return float(np.log2(1 + (low - least) / bulk)), float(np.log2(1 + (greatest - high) / bulk))


def _hot_shares(keys: np.ndarray) -> np.ndarray:
    if not len(keys):
        return np.zeros(len(TOPS))
    counts = np.sort(np.unique(keys, return_counts=True)[1])[::-1]
    return np.array([counts[:top].sum() / len(keys) for top in TOPS])


def _rank_shares(operations: np.ndarray, keys: np.ndarray) -> np.ndarray:
    step = max(len(operations) // _MOST, 1)
    ranks = np.searchsorted(keys, operations[::step])
    bins = (ranks * RANK_BINS // max(len(keys), 1)).clip(0, RANK_BINS - 1)
    return np.bincount(bins, minlength=RANK_BINS) / max(len(bins), 1)
