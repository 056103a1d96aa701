"""The processors of this machine: whether they were idle while something was measured."""

from pathlib import Path
from typing import NamedTuple


class ProcessorTicks(NamedTuple):
    """Time of all processors since the machine started, in ticks; see proc(5)."""

    idle: int
    total: int

    def idle_share(self, later: "ProcessorTicks") -> float:
        """Return the share of the time until later in which processors were idle."""
        return (later.idle - self.idle) / max(1, later.total - self.total)


def processor_ticks() -> ProcessorTicks:
    """Return the time of all processors so far."""
    line = Path("/proc/stat").read_text().splitlines()[0]
    counts = [int(count) for count in line.split()[1:9]]
    _, _, _, idle, waiting_for_disks, *_ = counts
    return ProcessorTicks(idle + waiting_for_disks, sum(counts))
