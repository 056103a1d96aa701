"""What adaptation believes of the network: as it was measured, and what has changed since."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.collectives.adapt.traffic import Traffic, typical_rates
from headrace.collectives.adapt.updated import PortRates, explain, raised
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
        known = raised(self._measured, traffic.rate_bytes_per_s, traffic.sent_bytes)
        if known is not self._measured:
            self._measured = known
            self.topology = self.rates.apply(known)
        return explain(
            self._normal.rates.apply(self._measured),
            typical_rates(self._normal.windows),
            traffic.rate_bytes_per_s,
            traffic.sent_bytes,
            slower=slower,
            recovering=self.slow,
        )

    @property
    def slow(self) -> tuple[str, ...]:
        """Names of the ports that are believed to be slower than measured."""
        rates = self._normal.rates.factors
        return tuple(name for name, rate in rates.items() if rate < 1)

    def believe(self, changes: Mapping[str, float]) -> None:
        """Take what `changes` said for true. {}: what had changed is as it was measured again."""
        self.rates = self._normal.rates.changed(changes) if changes else PortRates()
        self.topology = self.rates.apply(self._measured)

    def measured(self, topology: Topology) -> None:
        """Begin anew with a topology that was just measured."""
        self._measured = self.topology = topology
        self.rates = PortRates()
        self._by_plan.clear()
        self._normal = _Normal(self.rates)

    def normal(self, traffic: Traffic) -> None:
        """Add a window in which nothing changed, under the plan in force."""
        self._normal.windows = [*self._normal.windows[1 - _WINDOWS :], traffic]

    def settle(self) -> None:
        """Take what is believed for settled: what was seen while it was not is no guide."""
        if self._normal.rates != self.rates:
            self._normal = _Normal(self.rates)

    @property
    def settled(self) -> bool:
        """Whether it is known what is normal now."""
        return bool(self._normal.windows)

    def under(self, before: str, plan: str, *, alike: bool = False) -> None:
        """Another plan serves: what was normal when it did so before, if ever, counts again.

        Parameters
        ----------
        before, plan : names of the plans.
        alike : they differ too little for connections to do anything else.
        """
        self._by_plan[before] = self._normal
        if not alike:
            self._normal = self._by_plan.pop(plan, _Normal(self.rates))
        while len(self._by_plan) > _PLANS:
            self._by_plan.pop(next(iter(self._by_plan)))
