"""A hook's figures by name, for TensorBoard and others."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from headrace.compression.run.exchanger import ExchangeStatistics
from headrace.extras import require_metrics
from headrace.facades import offered_by

if TYPE_CHECKING:
    from headrace.compression.run.metrics import HookMetrics


@offered_by("headrace.compression")
class ScalarWriter(Protocol):
    """Writer of scalars, such as `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> object:
        """Write one."""
        ...


def figures_of(statistics: ExchangeStatistics) -> dict[str, float]:
    """Return the statistics by name, with the bytes saved (below 0 where a codec sends more)."""
    figures: dict[str, float] = {
        name: getattr(statistics, name) for name in ExchangeStatistics.__slots__
    }
    return {**figures, "saved_bytes": statistics.plain_bytes - statistics.sent_bytes}


class HookFigures(ABC):
    """A hook whose figures TensorBoard and Prometheus can have."""

    _rank: int

    @abstractmethod
    def figures(self) -> dict[str, float]:
        """Return the sums over all steps by name, with ``saved_bytes``."""

    def write_figures(self, writer: ScalarWriter, step: int) -> None:
        """Write the figures to TensorBoard: to a `SummaryWriter`, under ``compression/``."""
        for name, number in self.figures().items():
            writer.add_scalar(f"compression/{name}", number, step)

    def metrics(self) -> "HookMetrics":
        """Return a collector for `headrace.job.metrics.start_metrics`."""
        require_metrics("hook.metrics()")
        from headrace.compression.run.metrics import HookMetrics

        return HookMetrics(self._rank, self.figures)
