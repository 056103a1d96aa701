"""Estimate of the network: as measured, with the changes since."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.collectives.adapt.observe.port_changes import PortRates, changed_ports, raised
from headrace.collectives.adapt.observe.traffic import Traffic, typical_rates
from headrace.topology import Topology

_WINDOWS = 5
_PLANS = 8


@dataclass(slots=True)
class _Baseline:
    """Normal rates of connections under one plan while ports have certain rates."""

    rates: PortRates
    windows: list[Traffic] = field(default_factory=list[Traffic])


class KnownNetwork:
    """A measured topology, ports whose rates have changed since, and a baseline by plan.

    Attributes
    ----------
    topology : present estimate.
    rates : of ports, relative to what was measured.
    """

    def __init__(self, measured: Topology) -> None:
        self._measured = self.topology = measured
        self.rates = PortRates()
        self._baseline = _Baseline(self.rates)
        self._by_plan: dict[str, _Baseline] = {}

    def changes(self, traffic: Traffic, *, slower: bool | None = None) -> dict[str, float]:
        """Return by what factor which ports differ from the baseline; {}: none.

        Parameters
        ----------
        slower : whether something got slower (True) or faster (False); None: not known.
        """
        if not self._baseline.windows:
            return {}
        measured = raised(self._measured, traffic.rate_bytes_per_s, traffic.sent_bytes)
        if measured is not self._measured:
            self._measured = measured
            self.topology = self.rates.apply(measured)
        return changed_ports(
            self._baseline.rates.apply(self._measured),
            typical_rates(self._baseline.windows),
            traffic.rate_bytes_per_s,
            traffic.sent_bytes,
            slower=slower,
            recovering=self.slow,
        )

    @property
    def slow(self) -> tuple[str, ...]:
        """Names of the ports that are estimated to be slower than measured."""
        rates = self._baseline.rates.factors
        return tuple(name for name, rate in rates.items() if rate < 1)

    def update(self, changes: Mapping[str, float]) -> None:
        """Update the estimate by `changes`. {}: all ports are as measured again."""
        self.rates = self._baseline.rates.changed(changes) if changes else PortRates()
        self.topology = self.rates.apply(self._measured)

    def measured(self, topology: Topology) -> None:
        """Begin anew with a topology that was just measured."""
        self._measured = self.topology = topology
        self.rates = PortRates()
        self.restart()

    def restart(self) -> None:
        """Drop all baselines: connections will have other rates, though the network is the same."""
        self._by_plan.clear()
        self._baseline = _Baseline(self.rates)

    def add_baseline(self, traffic: Traffic) -> None:
        """Add a window without changes to the baseline of the plan in force."""
        self._baseline.windows = [*self._baseline.windows[1 - _WINDOWS :], traffic]

    def accept(self) -> None:
        """Accept the estimate: a baseline taken under another one is dropped."""
        if self._baseline.rates != self.rates:
            self._baseline = _Baseline(self.rates)

    @property
    def has_baseline(self) -> bool:
        """True once there is a baseline for the present estimate."""
        return bool(self._baseline.windows)

    def switch_plan(self, before: str, plan: str, *, alike: bool = False) -> None:
        """Switch to the baseline of another plan, from when it was in force before, if ever.

        Parameters
        ----------
        before, plan : names of the plans.
        alike : they differ too little to change rates: the baseline stays.
        """
        self._by_plan[before] = self._baseline
        if not alike:
            self._baseline = self._by_plan.pop(plan, _Baseline(self.rates))
        while len(self._by_plan) > _PLANS:
            self._by_plan.pop(next(iter(self._by_plan)))
