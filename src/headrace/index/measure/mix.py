"""Features of the operations: their shares, skew, and where in the order of keys they are."""

from dataclasses import dataclass

import numpy as np

from headrace.artifact import Table
from headrace.index.profile import FEATURES
from headrace.index.trace import ERASE, FIND, INSERT, SCAN, Trace, distinct, ranks_in

TOPS = (1, 16, 256, 4096, 65536)
RANK_BINS = 32
NEAR_RANKS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedTrace:
    """A trace with the ranks of its operations.

    Attributes
    ----------
    keys : distinct codes that were loaded or inserted, ascending.
    ranks : of each operation, how many of them are below its code.
    is_key : of each operation, whether its code is one of them.
    present : of each operation, whether its code was loaded, or inserted before; erases are
        ignored.
    final_size : number of keys after the last operation, with erases.
    """

    trace: Trace
    keys: np.ndarray
    ranks: np.ndarray
    is_key: np.ndarray
    present: np.ndarray
    final_size: int


def rank_operations(trace: Trace) -> RankedTrace:
    """Return a trace with the ranks of its operations."""
    inserts = np.flatnonzero(trace.operations == INSERT)
    keys = distinct(np.concatenate([trace.loaded, trace.keys[inserts]]))
    ranks = ranks_in(keys, trace.keys)
    is_key = np.zeros(len(trace), dtype=bool)
    if len(keys):
        is_key = keys[ranks.clip(0, len(keys) - 1)] == trace.keys
    first = np.full(len(keys) + 1, len(trace))
    first[ranks[inserts][::-1]] = inserts[::-1]  # the earliest is assigned last
    first[ranks_in(keys, trace.loaded)] = -1
    present = is_key & (first[ranks] < np.arange(len(trace)))
    at_end = first < 0
    changes = np.flatnonzero(is_key & np.isin(trace.operations, (INSERT, ERASE)))
    at_end[ranks[changes]] = trace.operations[changes] == INSERT  # the last is assigned last
    return RankedTrace(
        trace=trace,
        keys=keys,
        ranks=ranks,
        is_key=is_key,
        present=present,
        final_size=int(at_end.sum()),
    )


def operation_features(ranked: RankedTrace, unsampled: Trace) -> dict[str, float]:
    """Return `FEATURES` of a sample of the trace `unsampled`.

    Shares of all operations: the four kinds. Of the finds: `missing_share`, of keys that never were
    there. Of the inserts: `assign_share`, of keys that were; `append_share`, beyond the greatest
    key. `near_share`: of operations within `NEAR_RANKS` keys of the one before. `log2_...`: of the
    number of keys loaded, operations, and keys at the end, of the whole trace, by the sample's
    growth. `..._tail_log2`: of 1 + the distance from the outermost key to the outer thousandth,
    over the range between the thousandths.
    """
    trace, shares = ranked.trace, unsampled.shares
    finds, inserts = trace.operations == FIND, trace.operations == INSERT
    growth = ranked.final_size / max(len(trace.loaded), 1)
    final = growth * len(unsampled.loaded) if len(trace.loaded) else ranked.final_size
    values = (
        *shares.values(),
        _share(~ranked.present[finds]),
        _share(ranked.present[inserts]),
        _share(_beyond(trace, inserts)),
        _near(ranked),
        *(float(np.log2(1 + size)) for size in (len(unsampled.loaded), len(unsampled), final)),
        *_tails(ranked.keys),
    )
    return dict(zip(FEATURES, map(float, values), strict=True))


def skew_tables(ranked: RankedTrace) -> dict[str, Table]:
    """Return the hot keys and the ranks of operations.

    "hot": the share of reads and of writes that are of the `TOPS` most frequent keys. "ranks": the
    shares of reads and of writes by rank, in `RANK_BINS` equal parts of the keys.
    """
    reads = (ranked.trace.operations == FIND) | (ranked.trace.operations == SCAN)
    parts = {"reads": reads, "writes": ~reads}
    hot = {"keys": np.array(TOPS, dtype=np.int32)}
    return {
        "hot": hot | {name: _hot_shares(ranked, selected) for name, selected in parts.items()},
        "ranks": {name: _rank_shares(ranked, selected) for name, selected in parts.items()},
    }


def _share(flags: np.ndarray) -> float:
    return float(flags.mean()) if len(flags) else 0.0


def _beyond(trace: Trace, inserts: np.ndarray) -> np.ndarray:
    """Return of each insert whether its key is above all that were loaded or inserted before."""
    keys = trace.keys[inserts]
    start = trace.loaded.max() if len(trace.loaded) else np.uint64(0)
    highest = np.maximum.accumulate(np.concatenate([[start], keys]))
    return keys > highest[:-1]


def _near(ranked: RankedTrace) -> float:
    if len(ranked.keys) <= NEAR_RANKS:
        return 1.0
    return _share(np.abs(np.diff(ranked.ranks)) < NEAR_RANKS)


def _tails(keys: np.ndarray) -> tuple[float, float]:
    if len(keys) < 2:
        return 0.0, 0.0
    outer = len(keys) // 1000
    low, high = int(keys[outer]), int(keys[-1 - outer])
    bulk = max(high - low, 1)
    least, greatest = int(keys[0]), int(keys[-1])
    return float(np.log2(1 + (low - least) / bulk)), float(np.log2(1 + (greatest - high) / bulk))


def _hot_shares(ranked: RankedTrace, part: np.ndarray) -> np.ndarray:
    """Return the shares of the `TOPS`; codes that never were there count as one each."""
    counts = np.sort(np.bincount(ranked.ranks[part & ranked.is_key]))[::-1]
    return np.array([counts[:top].sum() / max(part.sum(), 1) for top in TOPS])


def _rank_shares(ranked: RankedTrace, part: np.ndarray) -> np.ndarray:
    bins = ranked.ranks[part] * RANK_BINS // max(len(ranked.keys), 1)
    return np.bincount(bins.clip(0, RANK_BINS - 1), minlength=RANK_BINS) / max(len(bins), 1)
