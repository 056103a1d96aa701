"""Survey of a network, led by one rank: groups of hosts, link costs, shared capacities.

1. Round-robin of disjoint pairs (1-factorization), O(N) rounds: latency and bandwidth of all pairs.
2. Groups: the likeliest racks over the rounds of disjoint pairs, which may share an uplink, and
   over permutation traffic; or those that pair bandwidths show.
3. Unloaded probes, one link at a time: alpha and beta of all pairs, or of a few of each kind.
4. Concurrent flows, planned from the groups: capacities that hosts and groups share.

All of it fits a time budget: stages shorten their transfers, then skip some, and record the cuts.
A host that is lost on the way is left out; results about the others stay.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import numpy as np

import headrace
from headrace.collectives.measure.assemble import Findings
from headrace.collectives.measure.budget import Budget, ProbeEffort, ProgressCallback
from headrace.collectives.measure.fit.alpha_beta import LinkFit
from headrace.collectives.measure.fit.link_classes import (
    Costs,
    complete,
    even_out,
    outlier_pairs,
    unloaded_pairs,
)
from headrace.collectives.measure.probes.group_prober import GroupProber, Prober, Regroup, Runner
from headrace.collectives.measure.probes.permutation_traffic import LEAST_HOSTS, PermutationTraffic
from headrace.collectives.measure.probes.recorder import Recorder, Site
from headrace.collectives.measure.probes.round_robin import Pair, RoundRobin, local_rounds
from headrace.collectives.measure.probes.shared_capacity import find_shared
from headrace.collectives.measure.probes.trials import Capacity
from headrace.collectives.measure.probes.unloaded import UnloadedProbes
from headrace.collectives.measure.racks.linkage import group_hosts
from headrace.collectives.measure.racks.partition import Grouping, labels_of
from headrace.collectives.measure.racks.search import MOST_HOSTS, concurrent_rounds, search_racks
from headrace.errors import CommunicationError
from headrace.job.load import busiest
from headrace.topology.profile import Profile

# end of each stage, as a share of the progress bar
_PAIRS_DONE, _PERMUTATIONS_DONE, _UNLOADED_DONE = 0.2, 0.25, 0.65
# and, at the latest, of the budget
_PAIRS_END, _PERMUTATIONS_END, _UNLOADED_END = 0.4, 0.5, 0.75

log = logging.getLogger(__name__)


def measure_ranks(
    runner: Runner,
    rank_hosts: Sequence[str],
    *,
    effort: ProbeEffort | None = None,
    progress: ProgressCallback | None = None,
    regroup: Regroup | None = None,
) -> Profile | None:
    """Measure between the ranks of one executor group; every rank calls this.

    Parameters
    ----------
    runner : this rank's executor, connected and idle.
    rank_hosts : name of every rank's host, the same at every rank.
    effort : the same at every rank.
    progress : called at the leader.
    regroup : forms the next executor group of the survivors after the loss of a rank; the profile
        then covers those. Without it, the loss is an error.

    Returns
    -------
    Profile | None
        The profile at the leader (rank 0, or the lowest survivor), None elsewhere.

    Raises
    ------
    CommunicationError : at every rank, naming the host, if one dies or stops responding and the
        survivors cannot continue.
    """
    effort = effort or ProbeEffort()
    member = GroupProber(runner, rank_hosts, regroup=regroup, most_losses=effort.most_losses)
    if not member.follow():
        return None
    try:
        profile = survey(member, rank_hosts, effort=effort, progress=progress)
    except CommunicationError:
        raise
    except Exception:  # of the leader alone: the others wait for its next command
        with suppress(CommunicationError):
            member.stop()
        raise
    load: Mapping[str, Any] = {}
    try:
        load = busiest(member.loads()).to_provenance()
    except CommunicationError as error:  # the profile stays without
        member.survive(error)
    member.stop()
    return replace(profile, provenance={**profile.provenance, **load})


def survey(
    prober: Prober,
    rank_hosts: Sequence[str],
    *,
    effort: ProbeEffort | None = None,
    progress: ProgressCallback | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Profile:
    """Measure everything with `prober`; `rank_hosts` names every rank's host.

    `clock` counts the seconds of the effort's budget.
    """
    return _Survey(prober, Site.of(rank_hosts), effort or ProbeEffort(), progress, clock).run()


class _Survey:
    def __init__(
        self,
        prober: Prober,
        site: Site,
        effort: ProbeEffort,
        progress: ProgressCallback | None,
        clock: Callable[[], float],
    ) -> None:
        self.recorder = Recorder(prober, clock)
        self.site = site
        self.hosts = [site.hosts[host] for host in site.rank_host]
        self.effort = effort
        self.budget = Budget(effort.budget_s, clock)
        self.progress = progress
        self.shown = 0.0
        # results by pair of ranks, kept when a host is lost
        self.round_robin = RoundRobin(self.recorder, effort, self.budget)
        self.permutations = PermutationTraffic(self.recorder, effort, self.budget)
        self.unloaded = UnloadedProbes(self.recorder, effort)
        self.fits: dict[Pair, LinkFit] = {}
        self.local: dict[Pair, LinkFit] = {}
        self.repeated: set[Pair] = set()

    def report(self, what: str, share: float) -> None:
        if self.progress is not None:
            self.shown = max(self.shown, share)  # a loss repeats stages
            self.progress(what, self.shown)

    def run(self) -> Profile:
        measured_at = time.time()
        while True:
            # the leader may be the successor of one that was lost
            self.site = self.site.without(self.recorder.prober.lost)
            try:
                return self.stages(measured_at)
            except CommunicationError as error:
                self.recorder.prober.survive(error)
                log.warning("measuring continues without %s: %s", self.lost_ranks(), error)
                # the wait for a lost host does not count against the budget, and is counted once
                self.budget.exclude(self.budget.now - self.recorder.finished_s)
                self.recorder.finished_s = self.budget.now

    def lost_ranks(self) -> str:
        """Return the ranks of this loss, with their hosts, for messages."""
        lost = [rank for rank in self.recorder.prober.lost if rank in self.site.ranks]
        named = [f"rank {rank} on host '{self.hosts[rank]}'" for rank in sorted(lost)]
        return ", ".join(named) or "the old connections"

    def stages(self, measured_at: float) -> Profile:
        site = self.site
        bandwidth = self.round_robin.measure(
            site,
            _PAIRS_END,
            lambda what, share: self.report(what, share * _PAIRS_DONE),
        )
        self.report("grouping hosts", _PAIRS_DONE)
        groups = self.groups(bandwidth)
        self.fit_hosts(bandwidth, groups)
        host = {rank: index for index, ranks in enumerate(site.members) for rank in ranks}
        fits = {
            (host[a], host[b]): fit for (a, b), fit in self.fits.items() if a in host and b in host
        }
        costs = complete(bandwidth, groups, even_out(fits, groups))
        self.fit_local()
        self.report("probing shared capacities", _UNLOADED_DONE)
        shared = self.shared(groups, costs)
        kernel = self.recorder.prober.round_trips()
        self.report("done", 1.0)
        findings = Findings(site, self.fits, self.local, self.round_robin, kernel)
        return Profile(
            topology=findings.topology(costs, shared),
            groups=findings.rank_groups(groups),
            samples=self.recorder.table(site.ranks),
            fits=findings.fit_table(),
            pairs=findings.pair_table(),
            measured_at=round(measured_at, 3),
            took_s=round(self.budget.spent_s, 3),
            valid_for_s=self.effort.valid_for_s,
            provenance={
                "made_by": f"headrace {headrace.__version__}",
                "effort": asdict(self.effort),
                "cut": self.budget.cuts,
                "lost": [
                    {"rank": rank, "host": self.hosts[rank], "reason": reason}
                    for rank, reason in sorted(self.recorder.prober.lost.items())
                ],
            },
        )

    def groups(self, bandwidth: np.ndarray) -> Grouping:
        """Group hosts by the likeliest racks, or by bandwidths of pairs or under permutations."""
        pairs = group_hosts(bandwidth)
        if len(bandwidth) < LEAST_HOSTS:
            return pairs
        span = _PERMUTATIONS_DONE - _PAIRS_DONE
        loaded = self.permutations.measure(
            self.site,
            bandwidth,
            _PERMUTATIONS_END,
            lambda what, share: self.report(what, _PAIRS_DONE + share * span),
        )
        seen = [bandwidth]
        if loaded is not None:
            seen += [loaded, np.minimum(bandwidth, loaded)]
        if len(bandwidth) > MOST_HOSTS:
            return pairs if len(pairs) > 1 or loaded is None else group_hosts(loaded)
        rounds = concurrent_rounds(self.recorder.table(self.site.ranks), self.site)
        likeliest = search_racks(rounds, seen, lambda: self.budget.left_s(_PERMUTATIONS_END) <= 0)
        # racks in pair bandwidths that no uplink explains may have another cause
        return pairs if len(likeliest) == 1 else likeliest

    def fit_hosts(self, bandwidth: np.ndarray, groups: Grouping) -> None:
        """Fit the links between hosts; probe outliers a second time."""
        site, effort = self.site, self.effort
        pairs = unloaded_pairs(groups, effort.all_pairs_up_to, effort.pairs_per_kind)

        def probe(pair: Pair, done: float) -> None:
            here, there = (site.hosts[host] for host in pair)
            share = _PERMUTATIONS_DONE + (_UNLOADED_DONE - _PERMUTATIONS_DONE) * done
            self.report(f"link {here} to {there}", share)
            ranks = self.ranks(pair)
            [self.fits[ranks]] = self.unloaded.fit([ranks], [bandwidth[pair]])

        missing = [pair for pair in pairs if self.ranks(pair) not in self.fits]
        # never skipped: the first pair inside a group and the first across represent the others
        group_of = labels_of(groups)
        sorts = {bool(group_of[a] == group_of[b]): (a, b) for a, b in reversed(pairs)}
        for index, pair in enumerate(missing):
            if pair not in sorts.values() and self.budget.left_s(_UNLOADED_END) <= 0:
                left = len(missing) - index
                self.budget.cut("unloaded", f"{left} of {len(pairs)} links left out")
                return
            probe(pair, index / len(missing))
        fits = {pair: self.fits[self.ranks(pair)] for pair in pairs}
        for pair in outlier_pairs(fits, groups)[: effort.second_looks]:
            if self.ranks(pair) in self.repeated:
                continue
            if self.budget.left_s(_UNLOADED_END) <= 0:
                self.budget.cut("unloaded", "second probes of outliers left out")
                return
            probe(pair, 1.0)
            self.repeated.add(self.ranks(pair))

    def ranks(self, pair: Pair) -> Pair:
        """Return the ranks that represent a pair of hosts."""
        return self.site.rank(pair[0]), self.site.rank(pair[1])

    def fit_local(self) -> None:
        """Fit links between ranks of one host, one pair of each host at a time."""
        estimate = self.effort.most_bytes / self.effort.quiet_us * 1e6
        for forward in local_rounds(self.site.members)[: self.effort.local_rounds]:
            for pairs in (forward, tuple((b, a) for a, b in forward)):
                if any(pair not in self.local for pair in pairs):
                    fits = self.unloaded.fit(pairs, [estimate] * len(pairs))
                    self.local.update(zip(pairs, fits, strict=True))

    def shared(self, groups: Grouping, costs: Costs) -> tuple[Capacity, ...]:
        if len(self.site.hosts) < 2:
            return ()
        return find_shared(self.recorder, self.site, groups, costs, self.effort, self.budget)
