"""Shared capacities: flows that are slower together than alone use something together.

Trials are planned from the groups: one host to several and several to one for its NIC, disjoint
pairs out of and into a group for its uplink, and both ways at once for an uplink that is not
full duplex. Each flow's size is its own rate times one duration, so that undisturbed flows end
together; the *stretch* says by how much they did not.

A trial out of one group runs into others. The tightest capacities are accepted first, and a
trial that those already explain says nothing new.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol

from headrace.collectives.measure.fit import LinkFit
from headrace.collectives.measure.group import Groups
from headrace.collectives.measure.recorder import Recorder, Site, Stage
from headrace.collectives.measure.tournament import Pair
from headrace.topology import BYTES_PER_MB, SharedCapacity

LEAST_STRETCH = 1.12
"""Flows together must take this many times as long as alone (or as already explained)."""

_HALF_DUPLEX_STRETCH = 1.5
_MOST_STRETCH_BY_NOISE = 1.05
_RETURN_STRETCH = 1.022
"""One acknowledgement of 66 bytes for two full frames of the other direction: no more than that is
charged, whatever a trial on a busy machine says, or bounds would promise too little."""
_CONFIRMATIONS = 2
_FILLED = 0.95
_MOST_FLOWS = 8
_NIC_PARTNERS = 3
_ALL_NICS_UP_TO = 12
_NICS_PER_GROUP = 2


class Limits(Protocol):
    """The part of the survey's effort that matters here."""

    @property
    def most_bytes(self) -> float:
        """Largest bulk transfer."""
        ...

    @property
    def repeats(self) -> int:
        """Runs of every transfer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A port of some hosts that flows between them and the others pass: `out`, `in` or `both`."""

    kind: str
    name: str
    hosts: frozenset[int]
    direction: str
    beta_us_per_mb: float = 0.0

    def carries(self, src: int, dst: int) -> bool:
        """Whether a flow between these hosts passes."""
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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Flows between hosts that would expose `capacities`."""

    capacities: tuple[Capacity, ...]
    flows: tuple[Pair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a trial went: every flow sent its own rate times `alone_us` and together took longer.

    `rates` are MB per us, alone.
    """

    trial: Trial
    rates: tuple[float, ...]
    stretch: float

    def beta_of(self, capacity: Capacity) -> float:
        """us/MB of the capacity if it was the one in the way."""
        return self.stretch / self.load(capacity)

    def load(self, capacity: Capacity) -> float:
        """MB per us that the flows would put through the capacity, undisturbed."""
        return sum(
            rate
            for rate, flow in zip(self.rates, self.trial.flows, strict=True)
            if capacity.carries(*flow)
        )


def find_shared(
    recorder: Recorder,
    site: Site,
    groups: Groups,
    costs: Mapping[Pair, LinkFit],
    duration_us: float,
    limits: Limits,
) -> tuple[Capacity, ...]:
    """Run the trials and return the capacities that showed."""

    def run(trial: Trial) -> Outcome:
        return _run(recorder, site, costs, trial, duration_us, limits)

    beta = {pair: fit.beta_us_per_mb for pair, fit in costs.items()}
    nics = nic_trials(site, groups, beta)
    outcomes = [run(trial) for trial in nics]
    small, large = uplink_trials(groups, few=True), uplink_trials(groups, few=False)
    for first, second in zip(small, large, strict=True):
        outcomes.append(run(first))
        if outcomes[-1].stretch < LEAST_STRETCH and len(second.flows) > len(first.flows):
            outcomes.append(run(second))
    found = accept(outcomes, beta, LEAST_STRETCH)
    both = [_confirmed(run, trial) for trial in duplex_trials(groups)]
    found = accept(both, beta, _HALF_DUPLEX_STRETCH, found)
    return extend_nics(_with_return_traffic(found, both), site, groups, nics)


def _with_return_traffic(
    found: tuple[Capacity, ...], both: Sequence[Outcome]
) -> tuple[Capacity, ...]:
    """Charge uplinks for the acknowledgements of what flows the other way.

    Collectives fill an uplink both ways at once; each way then carries the other's
    acknowledgements too (over TCP about one byte in fifty), which one-way trials do not show.
    """
    tax = [o.stretch for o in both if 1.0 < o.stretch < _MOST_STRETCH_BY_NOISE]
    if not tax:
        return found
    return tuple(
        replace(c, beta_us_per_mb=c.beta_us_per_mb * min(*tax, _RETURN_STRETCH))
        if c.kind == "uplink"
        else c
        for c in found
    )


def _confirmed(run: Callable[[Trial], Outcome], trial: Trial) -> Outcome:
    """Run a trial that should show nothing; if it shows something, again: the least counts.

    A link that is not full duplex is rare, a machine that is busy for a moment is not.
    """
    outcome = run(trial)
    for _ in range(_CONFIRMATIONS):
        if outcome.stretch < _HALF_DUPLEX_STRETCH:
            break
        outcome = min(outcome, run(trial), key=lambda one: one.stretch)
    return outcome


def accept(
    outcomes: Sequence[Outcome],
    beta: Mapping[Pair, float],
    threshold: float,
    known: tuple[Capacity, ...] = (),
) -> tuple[Capacity, ...]:
    """Return `known` and the capacities that explain what `known` does not, tightest first."""
    found = list(known)
    candidates = [
        (outcome.beta_of(capacity), outcome, capacity)
        for outcome in outcomes
        for capacity in outcome.trial.capacities
    ]
    settled: dict[int, float] = {}
    for slowness, outcome, capacity in sorted(candidates, key=lambda row: -row[0]):
        # names of one trial are told apart by nothing, so they stand or fall together
        if id(outcome) not in settled:
            settled[id(outcome)] = max((_explains(outcome, other) for other in found), default=1.0)
        if outcome.stretch < threshold * max(1.0, settled[id(outcome)]):
            continue
        # a capacity is at least as fast as the fastest link over it; where one flow alone about
        # fills it, that link's own probes know its rate better
        alone = min(cost for pair, cost in beta.items() if capacity.carries(*pair))
        slowness = alone if slowness > _FILLED * alone else slowness
        found.append(
            Capacity(
                kind=capacity.kind,
                name=capacity.name,
                hosts=capacity.hosts,
                direction=capacity.direction,
                beta_us_per_mb=slowness,
            )
        )
    order = {"nic": 0, "uplink": 1}
    distinct = {(c.kind, c.name, c.direction): c for c in reversed(found)}
    return tuple(
        sorted(distinct.values(), key=lambda c: (order[c.kind], min(c.hosts), c.direction))
    )


def _explains(outcome: Outcome, capacity: Capacity) -> float:
    """The stretch that a known capacity causes in this trial."""
    return capacity.beta_us_per_mb * outcome.load(capacity)


def _run(
    recorder: Recorder,
    site: Site,
    costs: Mapping[Pair, LinkFit],
    trial: Trial,
    duration_us: float,
    limits: Limits,
) -> Outcome:
    rates = [1.0 / costs[flow].beta_us_per_mb for flow in trial.flows]
    alone_us = min(duration_us, limits.most_bytes / BYTES_PER_MB / max(rates))
    pairs = [
        (site.rank(src, turn), site.rank(dst, turn)) for turn, (src, dst) in enumerate(trial.flows)
    ]
    sizes = [rate * alone_us * BYTES_PER_MB for rate in rates]
    times = recorder.bulk(Stage.SHARING, pairs, sizes, limits.repeats)
    # the trial ends with its last flow; the least disturbed run counts
    took_us = float(times.max(axis=0).min())
    fixed_us = sum(costs[flow].at_once_us(0) for flow in trial.flows) / len(trial.flows)
    stretch = (took_us - fixed_us) / alone_us
    return Outcome(trial=trial, rates=tuple(rates), stretch=stretch)


# planning the trials -----------------------------------------------------------------------


def nic_trials(site: Site, groups: Groups, beta: Mapping[Pair, float]) -> tuple[Trial, ...]:
    """One host to several, and several to one, for every host (a few per group if many)."""
    few = len(site.hosts) > _ALL_NICS_UP_TO
    trials: list[Trial] = []
    for group in groups:
        for host in group[:_NICS_PER_GROUP] if few else group:
            for direction in ("out", "in"):
                flows = _nic_flows(host, direction, site, groups, beta)
                if len(flows) > 1:
                    port = _nic(site, host, direction)
                    trials.append(Trial(capacities=(port,), flows=flows))
    return tuple(trials)


def _nic(site: Site, host: int, direction: str, beta: float = 0.0) -> Capacity:
    return Capacity(
        kind="nic",
        name=site.hosts[host],
        hosts=frozenset({host}),
        direction=direction,
        beta_us_per_mb=beta,
    )


def _nic_flows(
    host: int, direction: str, site: Site, groups: Groups, beta: Mapping[Pair, float]
) -> tuple[Pair, ...]:
    """Flows of one host, of which at most one passes its group's uplink (unless it is alone)."""

    def flow(peer: int) -> Pair:
        return (host, peer) if direction == "out" else (peer, host)

    def fastest(peers: Sequence[int]) -> list[int]:
        return sorted(peers, key=lambda peer: beta[flow(peer)])

    mine = next(group for group in groups if host in group)
    near = fastest([peer for peer in mine if peer != host])[:_NIC_PARTNERS]
    # one host of every other group, so that they do not meet on its uplink
    far = fastest([min(group, key=lambda p: beta[flow(p)]) for group in groups if group != mine])
    peers = near + far[:1] if len(near) == 1 else near or far[:_NIC_PARTNERS]
    if len(peers) == 1 and min(len(site.members[host]), len(site.members[peers[0]])) > 1:
        peers = peers * 2  # other ranks of the same two hosts
    return tuple(flow(peer) for peer in peers)


def uplink_trials(groups: Groups, *, few: bool) -> tuple[Trial, ...]:
    """Disjoint pairs out of and into every group of several hosts.

    With `few`, at most one flow to every other group, where there are at least two others: what
    slows them down is then this group's uplink. Else as many as there are hosts.
    """
    if len(groups) < 2:
        return ()
    if len(groups) == 2:
        # what leaves one enters the other: one trial, two names
        return tuple(
            Trial(
                capacities=tuple(
                    _uplink(groups, index, direction)
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
        others = [other for other in groups if other != group]
        outward = _across(group, others, len(others) if few else _MOST_FLOWS)
        if len(outward) > 1:
            inward = tuple((there, host) for host, there in outward)
            for direction, flows in (("out", outward), ("in", inward)):
                trials.append(Trial(capacities=(_uplink(groups, here, direction),), flows=flows))
    return tuple(trials)


def duplex_trials(groups: Groups) -> tuple[Trial, ...]:
    """Flows out of and into a group at the same time, between different hosts."""
    trials: list[Trial] = []
    for here, group in enumerate(groups if len(groups) > 2 else groups[:1]):
        others = [other for other in groups if other != group]
        flows = _across(group, others, _MOST_FLOWS)
        if len(flows) > 1:
            mixed = tuple((a, b) if i % 2 else (b, a) for i, (a, b) in enumerate(flows))
            trials.append(Trial(capacities=(_uplink(groups, here, "both"),), flows=mixed))
    return tuple(trials)


def _uplink(groups: Groups, index: int, direction: str) -> Capacity:
    return Capacity(
        kind="uplink", name=str(index), hosts=frozenset(groups[index]), direction=direction
    )


def _across(group: Sequence[int], others: Sequence[Sequence[int]], most: int) -> tuple[Pair, ...]:
    """Disjoint pairs from `group` to hosts of `others`, taking turns among those."""
    turns = [host for row in zip_longest(*others) for host in row if host is not None]
    return tuple(zip(group, turns, strict=False))[:most]


def extend_nics(
    found: tuple[Capacity, ...], site: Site, groups: Groups, trials: Sequence[Trial]
) -> tuple[Capacity, ...]:
    """Give hosts whose NIC was not tried the typical one of their group, if all tried showed."""
    tried = {(c.direction, *c.hosts) for trial in trials for c in trial.capacities}
    nics = {(c.direction, *c.hosts): c for c in found if c.kind == "nic"}
    more: list[Capacity] = []
    for group in groups:
        for direction in ("out", "in"):
            sample = [(direction, host) for host in group if (direction, host) in tried]
            if not sample or any(key not in nics for key in sample):
                continue
            betas = sorted(nics[key].beta_us_per_mb for key in sample)
            more += [
                _nic(site, host, direction, betas[len(betas) // 2])
                for host in group
                if (direction, host) not in tried
            ]
    return (*found, *more)
