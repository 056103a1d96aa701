"""What adaptation believes of the network: as it was measured, and what has changed since."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.collectives.adapt.traffic import Traffic, typical_rates
from headrace.collectives.adapt.updated import PortRates, explain
from headrace.topology import Topology

__all__ = ["KnownNetwork"]

_WINDOWS = 5
_PLANS = 8


@dataclass(slots=True)
class _Normal:
    """What connections do under one plan while ports have certain rates."""

    rates: PortRates
    windows: list[Traffic] = field(default_factory=list[Traffic])


class KnownNetwork:
    """A measured topology, ports whose rates have changed since, and what connections do normally.

    Attributes
    ----------
    topology : as it is now, as far as known.
    rates : of ports, relative to what was measured.
    """

    def __init__(self, measured: Topology) -> None:
        self._measured = self.topology = measured
        self.rates = PortRates()
        self._normal = _Normal(self.rates)
        self._by_plan: dict[str, _Normal] = {}

    def changes(self, traffic: Traffic, *, slower: bool | None = None) -> dict[str, float]:
        """Return by what factor which ports differ from what is normal; {}: nothing says so.

        Parameters
        ----------
        slower : whether it is known that something got slower, or faster; None: either.
        """
        if not self._normal.windows:
            return {}
        return explain(
            self._measured,
            typical_rates(self._normal.windows),
            traffic.rate_bytes_per_s,
            traffic.sent_bytes,
            slower=slower,
        )

    def believe(self, changes: Mapping[str, float]) -> None:
        """Take what `changes` said for true. {}: what had changed is as it was measured again."""
        self.rates = self._normal.rates.changed(changes) if changes else PortRates()
        self.topology = self.rates.apply(self._measured)

    def measured(self, topology: Topology) -> None:
        """Begin anew with a topology that was just measured."""
        self._measured = self.topology = topology
        self.rates = PortRates()
        self._by_plan.clear()
        self.forget()

    def normal(self, traffic: Traffic) -> None:
        """Add a window in which nothing changed, under the plan in force."""
        self._normal.windows = [*self._normal.windows[1 - _WINDOWS :], traffic]

    def forget(self) -> None:
        """Forget what is normal under the plan in force: from now on something else is."""
        self._normal.rates = self.rates
        self._normal.windows.clear()

    def under(self, before: str, plan: str) -> None:
        """Another plan serves: what was normal when it did so before, if ever, counts again.

        Parameters
        ----------
        before, plan : names of the plans.
        """
        self._by_plan[before] = self._normal
        self._normal = self._by_plan.pop(plan, _Normal(self.rates))
        while len(self._by_plan) > _PLANS:
            self._by_plan.pop(next(iter(self._by_plan)))
