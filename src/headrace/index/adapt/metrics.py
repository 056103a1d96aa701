"""Metrics of an adapted index for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from headrace.facades import offered_by
from headrace.index.adapt.agent import IndexAdaptation
from headrace.job.metrics import RankMetrics


@offered_by("headrace.index")
class IndexMetrics(RankMetrics):
    """Collector of one rank's index, for Prometheus; needs the extra `metrics`."""

    def __init__(self, rank: int, adaptation: IndexAdaptation) -> None:
        super().__init__(rank)
        self._adaptation = adaptation

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        index, adaptation = self._adaptation.index, self._adaptation
        counts = [row[0] for row in index.native.activity()[0]]
        for name, count in zip(("finds", "inserts", "erases", "scans"), counts, strict=True):
            yield self.count(f"index_{name}", f"Operations on the index: {name}", count)
        yield self.gauge("index_keys", "Keys in the index", len(index))
        yield self.count("index_conversions", "Conversions of all leaves", adaptation.conversions)
        yield self.gauge(
            "index_longest_slice_seconds",
            "Longest time that a conversion held the index's lock at once",
            adaptation.longest_slice_s,
        )
