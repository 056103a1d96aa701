"""A hook's figures for Prometheus (extra ``metrics``)."""

from collections.abc import Callable, Mapping
from typing import Any

from headrace.facades import offered_by
from headrace.job.metrics import RankMetrics

_COUNTS = {
    "steps": "steps averaged",
    "sent_bytes": "bytes of gradients that the rank sent",
    "plain_bytes": "bytes that it would have sent without compression",
    "encode_s": "seconds of encoding",
    "exchange_s": "seconds of waiting for exchanges",
    "decode_s": "seconds of decoding",
}


@offered_by("headrace.compression")
class HookMetrics(RankMetrics):
    """A hook's sums over steps, for Prometheus.

    Parameters
    ----------
    figures : returns them.
    """

    def __init__(self, rank: int, figures: Callable[[], Mapping[str, float]]) -> None:
        super().__init__(rank)
        self._figures = figures

    def collect(self) -> Any:
        """Yield the metrics."""
        figures = self._figures()
        for name, text in _COUNTS.items():
            unit = f"{name[:-2]}_seconds" if name.endswith("_s") else name
            yield self.count(f"compression_{unit}", text, figures[name])
        yield self.count(
            "compression_waited_seconds",
            "seconds in which the backward pass waited for exchanges",
            figures["exposed_s"],
        )
        yield self.gauge(
            "compression_saved_bytes", "bytes not sent because of it", figures["saved_bytes"]
        )
