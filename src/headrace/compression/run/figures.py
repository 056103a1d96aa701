"""A hook's figures by name, for TensorBoard and others."""

from collections.abc import Mapping
from typing import Protocol

from headrace.compression.run.exchanger import ExchangeStatistics
from headrace.facades import offered_by


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


def write_figures(figures: Mapping[str, float], writer: ScalarWriter, step: int) -> None:
    """Write figures under ``compression/``."""
    for name, number in figures.items():
        writer.add_scalar(f"compression/{name}", number, step)
