"""Activity of a live index by its counters: some microseconds a look."""

import numpy as np

from headrace.index.adapt.workload import SeenWorkload
from headrace.index.run.index import Index
from headrace.index.trace import SCAN


class ActivityObserver:
    """Looks at an index; each returns the operations since the one before."""

    def __init__(self, index: Index) -> None:
        self._map = index.native
        self._counts, self._sampled = self._read(0)[:2]

    def look(self) -> SeenWorkload:
        """Return the workload since the last look."""
        counts, sampled, codes = self._read(self._sampled)
        since = counts - self._counts
        self._counts, self._sampled = counts, sampled
        timed, timed_ns = since[:, 1].astype(float), since[:, 2]
        cost_ns = np.divide(timed_ns, timed, out=np.full(len(timed), np.nan), where=timed > 0)
        return SeenWorkload(
            counts=tuple(since[:, 0].tolist()),
            cost_ns=tuple(cost_ns.tolist()),
            sample=codes,
            # all operations of batches are timed; of those by themselves, few
            batched=int(since[:SCAN, 1].sum()),
        )

    def _read(self, since: int) -> tuple[np.ndarray, int, np.ndarray]:
        rows, sampled, _, codes = self._map.activity(since)
        counts = np.array([(row[0], row[2], row[3]) for row in rows], np.int64)
        return counts, sampled, np.sort(codes)
