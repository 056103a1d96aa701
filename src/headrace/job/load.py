"""Load of the machine during a measurement: whether its times are those of an idle machine.

Times that were taken while other programs used the processors say nothing of it by themselves. What
measures watches the load meanwhile, keeps it in the provenance of its artifact, and says a word
where the machine was busy.
"""

import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, cast

LOAD = "load"
"""Field of a provenance that has a load."""

BUSY_WAITED, BUSY_STOLEN, BUSY_AVERAGE = 0.05, 0.05, 0.5
"""Shares from which a machine counts as busy: of the time that a thread could run, spent waiting
for a processor; of the processors' time, taken by other virtual machines; and, where the system
tells neither, runnable threads per processor ahead of the measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLoad:
    """Load during a measurement.

    Attributes
    ----------
    seconds : that the measurement took.
    processors : that this process may use.
    load_average : runnable threads of the machine in the minute ahead of the measurement.
    waited_share : of the time that the measuring thread could run, what it waited for a processor;
        None: the system does not tell.
    stolen_share : of the processors' time, what the hypervisor gave to others; None: not told.
    """

    seconds: float
    processors: int
    load_average: float
    waited_share: float | None = None
    stolen_share: float | None = None

    @property
    def busy(self) -> bool:
        """True if other work prolonged the measurement."""
        if self.waited_share is None:
            return self.load_average >= BUSY_AVERAGE * self.processors
        return self.waited_share >= BUSY_WAITED or (self.stolen_share or 0.0) >= BUSY_STOLEN

    @property
    def text(self) -> str:
        """The load as words, such as "busy: waited 31% of the time for a processor"."""
        facts: list[str] = []
        if self.waited_share is not None:
            facts.append(f"waited {self.waited_share:z.0%} of the time for a processor")
        if self.stolen_share is not None and self.stolen_share >= BUSY_STOLEN:
            facts.append(f"{self.stolen_share:z.0%} went to other virtual machines")
        facts.append(f"load average {self.load_average:.1f} on {self.processors} processors")
        return f"{'busy' if self.busy else 'idle'}: {', '.join(facts)}"

    @property
    def warning(self) -> str | None:
        """The line of a command beside its result; None on an idle machine."""
        if not self.busy:
            return None
        return (
            f"The machine was {self.text}. Times are longer than on an idle machine, and not "
            "equally so: measure again when it is idle."
        )

    @property
    def numbers(self) -> tuple[float, ...]:
        """The fields, with nan for None."""
        return tuple(math.nan if value is None else value for value in asdict(self).values())

    @classmethod
    def from_numbers(cls, numbers: Iterable[float]) -> Self:
        """Return the load of `numbers`."""
        seconds, processors, average, *shares = numbers
        waited, stolen = (None if math.isnan(share) else share for share in shares)
        return cls(
            seconds=seconds,
            processors=int(processors),
            load_average=average,
            waited_share=waited,
            stolen_share=stolen,
        )

    def to_provenance(self) -> dict[str, Any]:
        """Return the field of a provenance that has this load."""
        return {LOAD: asdict(self)}

    @classmethod
    def from_provenance(cls, provenance: Mapping[str, Any]) -> Self | None:
        """Return the load of a provenance; None: of an earlier version, or of no measurement."""
        load = provenance.get(LOAD)
        if not isinstance(load, Mapping):
            return None
        fields = {name: load.get(name) for name in cls.__slots__}
        optional = ("waited_share", "stolen_share")
        numbers = all(
            isinstance(value, int | float) or (value is None and name in optional)
            for name, value in fields.items()
        )
        return cls(**cast(dict[str, Any], fields)) if numbers else None


class LoadWatch:
    """Watches from when it is made, for the thread that makes it; `load` tells since then."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._average = os.getloadavg()[0]
        self._schedule = _schedule()
        self._processors = _processor_ticks()

    def load(self) -> MachineLoad:
        """Return the load since the watch was made; call it from the same thread."""
        return MachineLoad(
            seconds=time.perf_counter() - self._began,
            processors=len(os.sched_getaffinity(0)),
            load_average=self._average,
            waited_share=_share(self._schedule, _schedule()),
            stolen_share=_share(self._processors, _processor_ticks()),
        )


def busiest(loads: Iterable[MachineLoad]) -> MachineLoad:
    """Return the load of the rank that waited most for a processor."""
    return max(loads, key=lambda load: (load.busy, load.waited_share or 0.0, load.load_average))


def load_text(provenance: Mapping[str, Any]) -> str:
    """Return the load of a provenance as words, for tables."""
    load = MachineLoad.from_provenance(provenance)
    return "not stated" if load is None else load.text


def _share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Return the share of the second count in the sum of the two, since `before`."""
    if before is None or after is None:
        return None
    unused, part = after[0] - before[0], after[1] - before[1]
    return part / (unused + part) if unused + part > 0 else 0.0


def _schedule() -> tuple[int, int] | None:
    """Return nanoseconds that the calling thread ran, and that it waited for a processor."""
    try:
        ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
        return int(ran), int(waited)
    except (OSError, ValueError):
        return None


def _processor_ticks() -> tuple[int, int] | None:
    """Return ticks of all processors that were not stolen, and those that were."""
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        ticks = [int(count) for count in first[1:9]]  # user to steal
    except (OSError, ValueError):
        return None
    if first[0] != "cpu" or len(ticks) < 8:
        return None
    return sum(ticks[:7]), ticks[7]
