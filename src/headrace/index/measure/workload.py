"""A workload: operations that are made of a key set by their shares."""

from dataclasses import dataclass

import numpy as np

from headrace.index.errors import TraceError
from headrace.index.trace import ERASE, FIND, INSERT, SCAN, Trace, distinct, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Shares of operations, for `workload_trace`.

    Attributes
    ----------
    loaded : share of the keys that are present at first; the rest is inserted, in order.
    operations : how many; None: as many as insert all of the rest, or as many as there are keys if
        nothing is inserted.
    inserts, erases, scans : shares of the operations, at most 1 together; the rest finds.
    missing : share of the finds whose key is absent.
    skew : finds and erases choose the key of rank r (in a random order of the keys) with
        probability proportional to 1 / r^skew; 0: all keys alike.
    shuffled : whether keys arrive in random order; else as they stand.
    seed : equal seeds give equal traces.

    Raises
    ------
    TraceError : naming the share that is out of range.
    """

    loaded: float = 0.5
    operations: int | None = None
    inserts: float = 0.5
    erases: float = 0.0
    scans: float = 0.0
    missing: float = 0.0
    skew: float = 0.0
    shuffled: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("loaded", "inserts", "erases", "scans", "missing"):
            if not 0 <= getattr(self, name) <= 1:
                raise TraceError(f"{name} is {getattr(self, name):g}, needs 0 to 1")
        if self.inserts + self.erases + self.scans > 1 + 1e-9:
            total = self.inserts + self.erases + self.scans
            raise TraceError(f"inserts, erases and scans are {total:g} together, needs at most 1")
        if not 0 <= self.skew < 4:
            raise TraceError(f"zipf is {self.skew:g}, needs 0 to less than 4")


def workload_trace(keys: np.ndarray, workload: Workload) -> Trace:
    """Return a trace of a key set (any number type; equal keys count once).

    Raises
    ------
    TraceError : the keys have another type, are NaN, or are fewer than two; or no key is left for
        the inserts, of which the number of operations follows.
    """
    codes, kind = encode(keys)
    random = np.random.default_rng(workload.seed)
    codes = _arrival(codes, workload, random)
    if len(codes) < 2:
        raise TraceError(f"keys: {len(codes)} different ones, needs two at least")
    loaded = min(max(round(workload.loaded * len(codes)), 1), len(codes))
    if loaded == len(codes) and workload.inserts and workload.operations is None:
        raise TraceError(
            f"loaded is {workload.loaded:g} and inserts {workload.inserts:g}: all {loaded} keys "
            "exist at first and none is left to be inserted, so there are no operations; "
            "needs inserts 0, or loaded below 1"
        )
    operations = _operations(len(codes) - loaded, len(codes), workload, random)
    inserts = operations == INSERT
    present = loaded + np.cumsum(inserts) - inserts  # keys that have come before each operation
    places = _places(present, workload.skew, random)
    places[inserts] = present[inserts]
    targets = codes[places]
    absent = (operations == FIND) & (random.random(len(operations)) < workload.missing)
    targets[absent] += np.uint64(1)  # a neighbour, which is mostly absent
    return Trace(loaded=codes[:loaded], operations=operations, keys=targets, kind=kind)


def _arrival(codes: np.ndarray, workload: Workload, random: np.random.Generator) -> np.ndarray:
    """Return each code once, in the order of arrival."""
    if workload.shuffled:
        keys = distinct(codes)
        random.shuffle(keys)
        return keys
    _, first = np.unique(codes, return_index=True)
    return codes[np.sort(first)]


def _operations(
    most_inserts: int, keys: int, workload: Workload, random: np.random.Generator
) -> np.ndarray:
    """Return operations, of which at most `most_inserts` insert."""
    count = workload.operations
    if count is None:
        count = round(most_inserts / workload.inserts) if workload.inserts else keys
    shares = np.array([workload.inserts, workload.erases, workload.scans])
    limits = np.cumsum(shares)
    draws = random.random(count)
    numbers = np.array([INSERT, ERASE, SCAN, FIND], dtype=np.uint8)
    operations = numbers[np.searchsorted(limits, draws, side="right").clip(0, 3)]
    too_many = np.flatnonzero(operations == INSERT)[most_inserts:]
    return np.delete(operations, too_many)


def _places(present: np.ndarray, skew: float, random: np.random.Generator) -> np.ndarray:
    """Return for each operation the place in the order of arrival of a key that has come."""
    draws = random.random(len(present))
    if not skew:
        return (draws * present).astype(np.int64)
    # the continuous Zipf distribution on 1 to n, by its inverse; hot keys are those that came first
    if abs(skew - 1) < 1e-6:
        rank = present**draws
    else:
        power = 1 - skew
        rank = (1 + draws * (present.astype(np.float64) ** power - 1)) ** (1 / power)
    return (rank.astype(np.int64) - 1).clip(0, present - 1)
