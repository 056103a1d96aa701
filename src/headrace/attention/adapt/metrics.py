"""Metrics of adapted attention for Prometheus."""

import math
from collections.abc import Iterator

from prometheus_client.core import Metric

from headrace.attention.adapt.adaptation import AttentionAdaptation
from headrace.facades import offered_by
from headrace.job.metrics import RankMetrics


@offered_by("headrace.attention")
class AttentionMetrics(RankMetrics):
    """Collector of one rank's adaptation, for Prometheus; needs the extra `metrics`."""

    def __init__(self, rank: int, adaptation: AttentionAdaptation) -> None:
        super().__init__(rank)
        self._adaptation = adaptation

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        adaptation = self._adaptation
        error = adaptation.output_error
        yield self.count("attention_requests", "Requests with new caches", adaptation.requests)
        yield self.count("attention_observed", "Observed requests, or turns", adaptation.observed)
        yield self.gauge("attention_clusters", "Clusters of new caches", adaptation.plan.clusters)
        yield self.gauge(
            "attention_output_error",
            "Output error of the last observed request",
            math.nan if error is None else error,
        )
