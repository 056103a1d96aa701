"""Trials of concurrent flows that expose shared capacities, planned from the groups of hosts.

One host to several and several to one for its NIC, disjoint pairs out of and into a group for its
uplink, and both ways at once for an uplink that is not full duplex.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from headrace.collectives.measure.probes.recorder import Site
from headrace.collectives.measure.probes.round_robin import Pair
from headrace.collectives.measure.racks.partition import Grouping
from headrace.topology import SharedCapacity

_MOST_FLOWS = 8
_NIC_PARTNERS = 3
_ALL_NICS_UP_TO = 12
_NICS_PER_GROUP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A port that flows between `hosts` and all others pass, `out`, `in` or `both` ways.

    With `at_least`, no trial reached its limit: beta is from a lower bound of its rate.
    """

    kind: str
    name: str
    hosts: frozenset[int]
    direction: str
    beta_us_per_mb: float = 0.0
    at_least: bool = False

    def carries(self, src: int, dst: int) -> bool:
        """Return whether a flow between these hosts passes it."""
        leaves = src in self.hosts and dst not in self.hosts
        enters = dst in self.hosts and src not in self.hosts
        return (leaves and self.direction != "in") or (enters and self.direction != "out")

    def over(self, site: Site, index: Mapping[Pair, int]) -> SharedCapacity:
        """Return it over the links of a topology; `index` maps (src, dst) ranks to them."""
        home = site.rank_host
        return SharedCapacity(
            name=f"{self.kind}-{self.direction}-{self.name}",
            links=tuple(i for (a, b), i in sorted(index.items()) if self.carries(home[a], home[b])),
            beta_us_per_mb=float(f"{self.beta_us_per_mb:.4g}"),
            at_least=self.at_least,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Flows between hosts that would expose `capacities`."""

    capacities: tuple[Capacity, ...]
    flows: tuple[Pair, ...]


def nic_trials(site: Site, groups: Grouping, beta: Mapping[Pair, float]) -> tuple[Trial, ...]:
    """Return trials of one host to several and back, for every host (a few per group if many)."""
    few = len(site.hosts) > _ALL_NICS_UP_TO
    trials: list[Trial] = []
    for group in groups:
        for host in group[:_NICS_PER_GROUP] if few else group:
            for direction in ("out", "in"):
                flows = _nic_flows(host, direction, site, groups, beta)
                if len(flows) > 1:
                    port = nic(site, host, direction)
                    trials.append(Trial(capacities=(port,), flows=flows))
    return tuple(trials)


def nic(site: Site, host: int, direction: str, beta: float = 0.0) -> Capacity:
    """Return the port of one host."""
    return Capacity(
        kind="nic",
        name=site.hosts[host],
        hosts=frozenset({host}),
        direction=direction,
        beta_us_per_mb=beta,
    )


def _nic_flows(
    host: int, direction: str, site: Site, groups: Grouping, beta: Mapping[Pair, float]
) -> tuple[Pair, ...]:
    """Return flows of one host, at most one over its group's uplink (unless it is alone)."""

    def flow(peer: int) -> Pair:
        return (host, peer) if direction == "out" else (peer, host)

    def fastest(peers: Sequence[int]) -> list[int]:
        return sorted(peers, key=lambda peer: beta[flow(peer)])

    mine = next(group for group in groups if host in group)
    near = fastest([peer for peer in mine if peer != host])[:_NIC_PARTNERS]
    # one host of every other group, so that they do not share its uplink
    far = fastest([min(group, key=lambda p: beta[flow(p)]) for group in groups if group != mine])
    peers = near + far[:1] if len(near) == 1 else near or far[:_NIC_PARTNERS]
    if len(peers) == 1 and min(len(site.members[host]), len(site.members[peers[0]])) > 1:
        peers = peers * 2  # other ranks of the same two hosts
    return tuple(flow(peer) for peer in peers)


def uplink_trials(groups: Grouping, *, few: bool) -> tuple[Trial, ...]:
    """Return trials of disjoint pairs out of and into every group of several hosts.

    With `few`, at most one flow to every other group, where there are at least two others: only
    this group's uplink can then slow them down. Else as many as there are hosts.
    """
    if len(groups) < 2:
        return ()
    if len(groups) == 2:
        # what leaves one enters the other: one trial, two names
        return tuple(
            Trial(
                capacities=tuple(
                    uplink(groups, index, direction)
                    for index, direction in ((here, "out"), (1 - here, "in"))
                    if len(groups[index]) > 1
                ),
                flows=flows,
            )
            for here in (0, 1)
            if len(flows := _across(groups[here], [groups[1 - here]], _MOST_FLOWS)) > 1
        )
    trials: list[Trial] = []
    for here, group in enumerate(groups):
        others = [peer_group for peer_group in groups if peer_group != group]
        outward = _across(group, others, len(others) if few else _MOST_FLOWS)
        if len(outward) > 1:
            inward = tuple((there, host) for host, there in outward)
            for direction, flows in (("out", outward), ("in", inward)):
                trials.append(Trial(capacities=(uplink(groups, here, direction),), flows=flows))
    return tuple(trials)


def duplex_trials(groups: Grouping) -> tuple[Trial, ...]:
    """Return trials of flows out of and into a group at once, between different hosts."""
    trials: list[Trial] = []
    for here, group in enumerate(groups if len(groups) > 2 else groups[:1]):
        others = [peer_group for peer_group in groups if peer_group != group]
        flows = _across(group, others, _MOST_FLOWS)
        if len(flows) > 1:
            mixed = tuple((a, b) if i % 2 else (b, a) for i, (a, b) in enumerate(flows))
            trials.append(Trial(capacities=(uplink(groups, here, "both"),), flows=mixed))
    return tuple(trials)


def uplink(groups: Grouping, index: int, direction: str, beta: float = 0.0) -> Capacity:
    """Return the port of one group."""
    return Capacity(
        kind="uplink",
        name=str(index),
        hosts=frozenset(groups[index]),
        direction=direction,
        beta_us_per_mb=beta,
    )


def _across(group: Sequence[int], others: Sequence[Sequence[int]], most: int) -> tuple[Pair, ...]:
    """Return disjoint pairs from `group` to hosts of `others`, in rotation among those."""
    turns = [host for row in zip_longest(*others) for host in row if host is not None]
    return tuple(zip(group, turns, strict=False))[:most]
