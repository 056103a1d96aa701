"""Metrics of a trainer's steps for Prometheus."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, Metric

from headrace.embeddings.run.step_times import STEP_PARTS, TrainerTimes
from headrace.facades import offered_by
from headrace.job.metrics import RankMetrics

_ROWS = ("fetched", "critical", "delayed", "evicted", "dirty")


@offered_by("headrace.embeddings")
class TimedBatches(Protocol):
    """Batches whose steps are timed, as `headrace.embeddings.fit` returns them."""

    @property
    def times(self) -> TrainerTimes:
        """Sums over the steps so far."""
        ...


@offered_by("headrace.embeddings")
class EmbeddingMetrics(RankMetrics):
    """Collector of one trainer's steps, for Prometheus; needs the extra `metrics`."""

    def __init__(self, rank: int, batches: TimedBatches) -> None:
        super().__init__(rank)
        self._batches = batches

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        times = self._batches.times
        yield self.count("embeddings_batches", "Batches trained on", times.batches)
        yield self._counts(
            "embeddings_step_seconds",
            "Seconds of steps, by part",
            "part",
            {part.removesuffix("_s"): getattr(times, part) for part in STEP_PARTS},
        )
        yield self._counts(
            "embeddings_rows",
            "Rows that moved",
            "kind",
            {kind: getattr(times, f"{kind}_rows") for kind in _ROWS},
        )
        yield self._counts(
            "embeddings_bytes",
            "Bytes of rows and gradients that moved",
            "kind",
            {kind: getattr(times, f"{kind}_bytes") for kind in (*_ROWS, "dense")},
        )

    def _counts(self, name: str, text: str, label: str, values: dict[str, float]) -> Metric:
        family = CounterMetricFamily(f"headrace_{name}", text, labels=["rank", label])
        for value_label, value in values.items():
            family.add_metric([str(self.rank), value_label], value)
        return family
