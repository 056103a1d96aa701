"""The emulated networks of this claim: racks, rates, and which host every rank is on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from headrace.collectives.plan.locality import RankGroups
from headrace.testbed import TestbedSpec
from headrace.topology import Topology


@dataclass(frozen=True, kw_only=True)
class Bed:
    """A testbed and the order of the ranks over its hosts.

    Attributes
    ----------
    racks : hosts per rack.
    host_mbit, uplink_mbit : rates; an uplink is a rack's, the same both ways.
    seed : of the order; None: rank by rank, rack after rack.
    slow : host index -> Mbit/s, for hosts that differ.
    """

    name: str
    racks: tuple[int, ...]
    host_mbit: float
    uplink_mbit: float
    seed: int | None = None
    slow: dict[int, float] = field(default_factory=dict)

    @cached_property
    def spec(self) -> TestbedSpec:
        """The testbed's specification."""
        return TestbedSpec.from_table(
            {
                "name": f"bed-{self.name}",
                "defaults": {
                    "host_rate": f"{self.host_mbit}mbit",
                    "uplink_rate": f"{self.uplink_mbit}mbit",
                },
                "racks": [{"hosts": count} for count in self.racks],
                "hosts": {f"host{h}": {"rate": f"{rate}mbit"} for h, rate in self.slow.items()},
            }
        )

    @property
    def ranks(self) -> int:
        """Number of ranks, one a host."""
        return sum(self.racks)

    @cached_property
    def order(self) -> list[int]:
        """The host index of every rank."""
        if self.seed is None:
            return self.spec.order("rack")
        return self.spec.order("random", seed=self.seed)

    @property
    def rank_hosts(self) -> list[str]:
        """The host's name of every rank."""
        return [self.spec.hosts[index].name for index in self.order]

    @property
    def groups(self) -> RankGroups:
        """The racks, as ranks."""
        return racks_of(self.spec, self.order)

    @property
    def truth(self) -> Topology:
        """The topology at the payload rates of TCP."""
        return self.spec.topology(self.order)

    @property
    def oversubscribed(self) -> float:
        """Sum of the rates of a rack's hosts over its uplink's; the worst rack."""
        if len(self.racks) == 1:
            return 1.0
        return max(self.racks) * self.host_mbit / self.uplink_mbit

    @property
    def ring_crossings(self) -> int:
        """Number of a ring's edges (rank r to r + 1) that leave the busiest rack."""
        return ring_crossings(self.groups, self.ranks)


def racks_of(spec: TestbedSpec, order: Sequence[int]) -> RankGroups:
    """Return the racks of `spec` as sorted groups of ranks, ordered by their first."""
    racks: dict[int, list[int]] = {}
    for rank, index in enumerate(order):
        racks.setdefault(spec.hosts[index].rack, []).append(rank)
    return tuple(sorted(tuple(ranks) for ranks in racks.values()))


def ring_crossings(groups: RankGroups, ranks: int) -> int:
    """Return the largest number of edges of the ring 0, 1, ... that leave one group."""
    return max(sum((rank + 1) % ranks not in group for rank in group) for group in groups)


def groups_text(groups: RankGroups) -> str:
    """Return groups as text: "035|124", or "0 3 5|1 2 10" if numbers have two digits."""
    space = " " if sum(map(len, groups)) > 10 else ""
    return "|".join(space.join(map(str, group)) for group in sorted(groups))
