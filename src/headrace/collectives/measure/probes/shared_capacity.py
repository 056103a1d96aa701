"""Shared capacities, from flows that are slower together than alone.

Each flow's size is its own rate times one duration, so that undisturbed flows end together; the
*stretch* is the factor by which they took longer.

A trial out of one group also loads others. The tightest capacities are accepted first, and a trial
whose stretch those explain adds none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.collectives.measure.budget import Budget, ProbeEffort
from headrace.collectives.measure.fit.alpha_beta import LinkFit
from headrace.collectives.measure.probes.recorder import Recorder, Series, Site
from headrace.collectives.measure.probes.round_robin import Pair
from headrace.collectives.measure.probes.trials import (
    Capacity,
    Trial,
    duplex_trials,
    nic,
    nic_trials,
    uplink_trials,
)
from headrace.collectives.measure.racks.partition import Grouping
from headrace.topology import BYTES_PER_MB

LEAST_STRETCH = 1.12
"""Flows together must take this many times as long as alone (or as already explained)."""

_HALF_DUPLEX_STRETCH = 1.5
_MOST_STRETCH_BY_NOISE = 1.05
_RETURN_STRETCH = 1.022
"""One acknowledgement of 66 bytes for two full frames of the other direction: no more than that is
charged, whatever a trial on a busy machine shows, or lower bounds on time would be too high."""
_CONFIRMATIONS = 2
_FILLED = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """Result of a trial: `stretch` is the time of its flows together over that of each alone.

    `rates` are MB per us, alone.
    """

    trial: Trial
    rates: tuple[float, ...]
    stretch: float

    def beta_of(self, capacity: Capacity) -> float:
        """Return us/MB of the capacity if it was the bottleneck."""
        return self.stretch / self.load(capacity)

    def load(self, capacity: Capacity) -> float:
        """Return the MB per us that the flows would put through the capacity, undisturbed."""
        return sum(
            rate
            for rate, flow in zip(self.rates, self.trial.flows, strict=True)
            if capacity.carries(*flow)
        )


RunTrial = Callable[[Trial], TrialOutcome | None]
"""Runs a trial; None if the budget is spent."""


def find_shared(
    recorder: Recorder,
    site: Site,
    groups: Grouping,
    costs: Mapping[Pair, LinkFit],
    effort: ProbeEffort,
    budget: Budget,
) -> tuple[Capacity, ...]:
    """Run the trials and return the capacities found.

    Once `budget` is spent, ports that were not tried take the values of those that were.
    """
    left_out: list[Trial] = []

    def run(trial: Trial) -> TrialOutcome | None:
        if budget.left_s() <= 0:
            left_out.append(trial)
            return None
        return _run(recorder, site, costs, trial, effort)

    beta = {pair: fit.beta_us_per_mb for pair, fit in costs.items()}
    # uplinks first: they matter most, and every group has its own
    uplinks = _uplink_outcomes(run, groups)
    nics = nic_trials(site, groups, beta)
    ports = [outcome for trial in nics if (outcome := run(trial))]
    capacities = accept([*ports, *uplinks], beta, LEAST_STRETCH)
    both = [outcome for trial in duplex_trials(groups) if (outcome := _confirmed(run, trial))]
    capacities = accept(both, beta, _HALF_DUPLEX_STRETCH, capacities)
    capacities = extend_nics(
        _with_return_traffic(capacities, both), site, groups, [outcome.trial for outcome in ports]
    )
    if left_out:
        budget.cut("sharing", f"{len(left_out)} trials of concurrent flows left out")
    return extend_uplinks(capacities, groups, left_out)


def _uplink_outcomes(run: RunTrial, groups: Grouping) -> list[TrialOutcome]:
    """Run few flows over every uplink; where they show nothing, as many as there are hosts."""
    outcomes: list[TrialOutcome] = []
    small, large = uplink_trials(groups, few=True), uplink_trials(groups, few=False)
    for first, second in zip(small, large, strict=True):
        outcome = run(first)
        if outcome is None:
            continue
        outcomes.append(outcome)
        if outcome.stretch < LEAST_STRETCH and len(second.flows) > len(first.flows):
            again = run(second)
            outcomes += [] if again is None else [again]
    return outcomes


def _with_return_traffic(
    capacities: tuple[Capacity, ...], both: Sequence[TrialOutcome]
) -> tuple[Capacity, ...]:
    """Charge uplinks for the acknowledgements of the other direction's data.

    Collectives fill an uplink both ways at once; each way then carries the other's
    acknowledgements too (over TCP about one byte in fifty), which one-way trials do not show.
    """
    costs = [o.stretch for o in both if 1.0 < o.stretch < _MOST_STRETCH_BY_NOISE]
    if not costs:
        return capacities
    return tuple(
        replace(c, beta_us_per_mb=c.beta_us_per_mb * min(*costs, _RETURN_STRETCH))
        if c.kind == "uplink"
        else c
        for c in capacities
    )


def _confirmed(run: RunTrial, trial: Trial) -> TrialOutcome | None:
    """Run a trial that should show nothing; repeat it if it does: the least stretch counts.

    A link that is not full duplex is rare, a machine that is busy for a moment is not.
    """
    outcome = run(trial)
    for _ in range(_CONFIRMATIONS):
        if outcome is None or outcome.stretch < _HALF_DUPLEX_STRETCH:
            break
        again = run(trial)
        if again is None:
            return None  # unconfirmed: not used
        outcome = min(outcome, again, key=lambda repeat: repeat.stretch)
    return outcome


def accept(
    outcomes: Sequence[TrialOutcome],
    beta: Mapping[Pair, float],
    threshold: float,
    confirmed: tuple[Capacity, ...] = (),
) -> tuple[Capacity, ...]:
    """Return `confirmed` and the capacities that explain further stretches, tightest first."""
    capacities = list(confirmed)
    candidates = [
        (outcome.beta_of(capacity), outcome, capacity)
        for outcome in outcomes
        for capacity in outcome.trial.capacities
    ]
    explained: dict[int, float] = {}
    for slowness, outcome, capacity in sorted(candidates, key=lambda row: -row[0]):
        # the capacities of one trial cannot be told apart: all are accepted, or none
        key = id(outcome)
        if key not in explained:
            explained[key] = max(
                (_explains(outcome, tighter) for tighter in capacities), default=1.0
            )
        if outcome.stretch < threshold * max(1.0, explained[key]):
            continue
        # a capacity is at least as fast as the fastest link over it; where one flow alone about
        # fills it, that link's own probes give its rate more precisely
        alone = min(cost for pair, cost in beta.items() if capacity.carries(*pair))
        # flows that together had clearly less than one of them has alone were limited elsewhere (by
        # a sender, a processor): this capacity was not reached
        reached = slowness <= LEAST_STRETCH * alone
        slowness = alone if slowness > _FILLED * alone else slowness
        capacities.append(replace(capacity, beta_us_per_mb=slowness, at_least=not reached))
    order = {"nic": 0, "uplink": 1}
    distinct = {(c.kind, c.name, c.direction): c for c in reversed(capacities)}
    return tuple(
        sorted(distinct.values(), key=lambda c: (order[c.kind], min(c.hosts), c.direction))
    )


def _explains(outcome: TrialOutcome, capacity: Capacity) -> float:
    """Return the stretch that a known capacity causes in this trial."""
    return capacity.beta_us_per_mb * outcome.load(capacity)


def _run(
    recorder: Recorder,
    site: Site,
    costs: Mapping[Pair, LinkFit],
    trial: Trial,
    effort: ProbeEffort,
) -> TrialOutcome:
    rates = [1.0 / costs[flow].beta_us_per_mb for flow in trial.flows]
    alone_us = min(effort.sharing_us, effort.most_bytes / BYTES_PER_MB / max(rates))
    pairs = [
        (site.rank(src, turn), site.rank(dst, turn)) for turn, (src, dst) in enumerate(trial.flows)
    ]
    sizes = [rate * alone_us * BYTES_PER_MB for rate in rates]
    times = recorder.bulk(Series.SHARING, pairs, sizes, effort.repeats)
    # the trial ends with its last flow; the least disturbed run counts
    took_us = float(times.max(axis=0).min())
    fixed_us = sum(costs[flow].at_once_us(0) for flow in trial.flows) / len(trial.flows)
    stretch = (took_us - fixed_us) / alone_us
    return TrialOutcome(trial=trial, rates=tuple(rates), stretch=stretch)


def extend_nics(
    capacities: tuple[Capacity, ...], site: Site, groups: Grouping, trials: Sequence[Trial]
) -> tuple[Capacity, ...]:
    """Give hosts with untried NICs the median of their group, if all tried NICs have a capacity.

    It is a lower bound of the rate (`at_least`).
    """
    tried = {(c.direction, c.name) for trial in trials for c in trial.capacities}
    more: list[Capacity] = []
    for group in groups:
        for direction in ("out", "in"):
            ports = [nic(site, host, direction) for host in group]
            tried_names = [port.name for port in ports if (direction, port.name) in tried]
            more += _extended(capacities, tried_names, ports)
    return (*capacities, *more)


def extend_uplinks(
    capacities: tuple[Capacity, ...], groups: Grouping, left_out: Sequence[Trial]
) -> tuple[Capacity, ...]:
    """Give groups with untried uplinks the median, if all tried uplinks have a capacity."""
    missing = {c for trial in left_out for c in trial.capacities if c.kind == "uplink"}
    several = [str(index) for index, group in enumerate(groups) if len(group) > 1]
    more: list[Capacity] = []
    for direction in ("out", "in"):
        ports = sorted((c for c in missing if c.direction == direction), key=lambda c: c.name)
        skipped = {port.name for port in ports}
        more += _extended(capacities, [name for name in several if name not in skipped], ports)
    return (*capacities, *more)


def _extended(
    capacities: tuple[Capacity, ...], tried: Sequence[str], ports: Sequence[Capacity]
) -> list[Capacity]:
    """Return `ports` that have no capacity, with the median of those tried, if all of them have."""
    alike = {(port.kind, port.direction) for port in ports}
    shown = {c.name: c.beta_us_per_mb for c in capacities if (c.kind, c.direction) in alike}
    if not tried or any(name not in shown for name in tried):
        return []
    betas = sorted(shown[name] for name in tried)
    return [
        replace(port, beta_us_per_mb=betas[len(betas) // 2], at_least=True)
        for port in ports
        if port.name not in shown
    ]
