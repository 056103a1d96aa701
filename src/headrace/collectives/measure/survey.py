"""The whole of measuring, as one rank conducts it: who is near, what links cost, what they share.

1. A tournament of disjoint pairs, O(N) rounds: latency and bandwidth between all hosts.
2. Groups. Disjoint pairs may have met on an uplink, and in a crowd everybody sends at once: the
   racks that explain all of those rounds, or those that pairs show.
3. Quiet probes, nobody else talking: alpha and beta of all pairs, or of a few of each kind.
4. Concurrent flows, planned from the groups: what hosts and groups share.

All of it fits a budget of time: stages look less closely, then at less, and say so. A host that is
lost on the way is left out; what was found about the others stays.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np

import headrace
from headrace.collectives.measure.costs import (
    Costs,
    complete,
    even_out,
    outlier_pairs,
    unloaded_pairs,
)
from headrace.collectives.measure.effort import Budget, ProbeEffort, ProgressCallback
from headrace.collectives.measure.findings import Findings
from headrace.collectives.measure.fit import LinkFit
from headrace.collectives.measure.group import Grouping, group_hosts
from headrace.collectives.measure.group_prober import GroupProber, Prober, Regroup, Runner
from headrace.collectives.measure.permutation_traffic import LEAST_HOSTS, PermutationTraffic
from headrace.collectives.measure.profile import Profile
from headrace.collectives.measure.rack_search import MOST_HOSTS, concurrent_rounds, search_racks
from headrace.collectives.measure.recorder import Recorder, Site
from headrace.collectives.measure.round_robin import Pair, RoundRobin, local_rounds
from headrace.collectives.measure.sharing import find_shared
from headrace.collectives.measure.trials import Capacity
from headrace.collectives.measure.unloaded import UnloadedProbes
from headrace.errors import CommunicationError

# where each stage ends on the progress bar
_TOURNAMENT_DONE, _CROWD_DONE, _QUIET_DONE = 0.2, 0.25, 0.65
# and after which share of the budget it has to
_TOURNAMENT_ENDS, _CROWD_ENDS, _QUIET_ENDS = 0.4, 0.5, 0.75

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
    runner : this rank's executor, connected, and idle for the time being.
    rank_hosts : name of every rank's host, the same at every rank.
    effort : the same at every rank.
    progress : used at the rank that conducts.
    regroup : how those who are left come together again after the loss of a rank; the profile
        then covers them. Without, the loss is an error.

    Returns
    -------
    Profile | None
        The profile at the rank that conducts (0, or the lowest that is left), None elsewhere.

    Raises
    ------
    CommunicationError : at every rank, naming the host, if one dies or stops answering and there
        is no going on without it.
    """
    effort = effort or ProbeEffort()
    member = GroupProber(runner, rank_hosts, regroup=regroup, most_losses=effort.most_losses)
    if not member.follow():
        return None
    profile = survey(member, rank_hosts, effort=effort, progress=progress)
    member.stop()
    return profile


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
        # what is known, by pair of ranks: it stays when a host is lost
        self.tournament = RoundRobin(self.recorder, effort, self.budget)
        self.crowd = PermutationTraffic(self.recorder, effort, self.budget)
        self.quiet = UnloadedProbes(self.recorder, effort)
        self.fits: dict[Pair, LinkFit] = {}
        self.local: dict[Pair, LinkFit] = {}
        self.second_looks: set[Pair] = set()

    def report(self, what: str, share: float) -> None:
        if self.progress is not None:
            self.shown = max(self.shown, share)  # after a loss some of it is done again
            self.progress(what, self.shown)

    def run(self) -> Profile:
        measured_at = time.time()
        while True:
            # who conducts may have taken over from one that was lost
            self.site = self.site.without(self.recorder.prober.lost)
            try:
                return self.stages(measured_at)
            except CommunicationError as error:
                self.recorder.prober.survive(error)
                log.warning("measuring goes on without %s: %s", self.whom(), error)
                # the wait for an answer that never came is nobody's fault
                self.budget.forgive(self.budget.now - self.recorder.finished_s)

    def whom(self) -> str:
        """The ranks that this loss cost, with their hosts."""
        gone = [rank for rank in self.recorder.prober.lost if rank in self.site.ranks]
        named = [f"rank {rank} on host '{self.hosts[rank]}'" for rank in sorted(gone)]
        return ", ".join(named) or "the old connections"

    def stages(self, measured_at: float) -> Profile:
        site = self.site
        bandwidth = self.tournament.play(
            site,
            _TOURNAMENT_ENDS,
            lambda what, share: self.report(what, share * _TOURNAMENT_DONE),
        )
        self.report("grouping hosts", _TOURNAMENT_DONE)
        groups = self.groups(bandwidth)
        self.fit_hosts(bandwidth, groups)
        host = {rank: index for index, ranks in enumerate(site.members) for rank in ranks}
        fits = {
            (host[a], host[b]): fit for (a, b), fit in self.fits.items() if a in host and b in host
        }
        costs = complete(bandwidth, groups, even_out(fits, groups))
        self.fit_local()
        self.report("looking for what links share", _QUIET_DONE)
        shared = self.shared(groups, costs)
        kernel = self.recorder.prober.round_trips()
        self.report("done", 1.0)
        found = Findings(site, self.fits, self.local, self.tournament, kernel)
        return Profile(
            topology=found.topology(costs, shared),
            groups=found.rank_groups(groups),
            samples=self.recorder.table(site.ranks),
            fits=found.fit_table(),
            pairs=found.pair_table(),
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
        """Group hosts by what pairs had, what they have in a crowd, and what explains both."""
        pairs = group_hosts(bandwidth)
        if len(bandwidth) < LEAST_HOSTS:
            return pairs
        span = _CROWD_DONE - _TOURNAMENT_DONE
        crowded = self.crowd.gather(
            self.site,
            bandwidth,
            _CROWD_ENDS,
            lambda what, share: self.report(what, _TOURNAMENT_DONE + share * span),
        )
        seen = [bandwidth]
        if crowded is not None:
            seen += [crowded, np.minimum(bandwidth, crowded)]
        if len(bandwidth) > MOST_HOSTS:
            return pairs if len(pairs) > 1 or crowded is None else group_hosts(crowded)
        rounds = concurrent_rounds(self.recorder.table(self.site.ranks), self.site)
        explained = search_racks(rounds, seen, lambda: self.budget.left_s(_CROWD_ENDS) <= 0)
        # racks that pairs show and no uplink explains may have something else that makes them so
        return pairs if len(explained) == 1 else explained

    def fit_hosts(self, bandwidth: np.ndarray, groups: Grouping) -> None:
        """Fit the links between hosts, and those that look bad once more."""
        site, effort = self.site, self.effort
        pairs = unloaded_pairs(groups, effort.all_pairs_up_to, effort.pairs_per_kind)

        def look(pair: Pair, done: float) -> None:
            here, there = (site.hosts[host] for host in pair)
            share = _CROWD_DONE + (_QUIET_DONE - _CROWD_DONE) * done
            self.report(f"link {here} to {there}", share)
            ranks = self.ranks(pair)
            [self.fits[ranks]] = self.quiet.fit([ranks], [bandwidth[pair]])

        missing = [pair for pair in pairs if self.ranks(pair) not in self.fits]
        # the first one inside a group and the first one across tell most of the others
        group_of = {host: index for index, group in enumerate(groups) for host in group}
        sorts = {group_of[a] == group_of[b]: (a, b) for a, b in reversed(pairs)}
        for index, pair in enumerate(missing):
            if pair not in sorts.values() and self.budget.left_s(_QUIET_ENDS) <= 0:
                left = len(missing) - index
                self.budget.cut("quiet", f"{left} of {len(pairs)} links left out")
                return
            look(pair, index / len(missing))
        fits = {pair: self.fits[self.ranks(pair)] for pair in pairs}
        for pair in outlier_pairs(fits, groups)[: effort.second_looks]:
            if self.ranks(pair) in self.second_looks:
                continue
            if self.budget.left_s(_QUIET_ENDS) <= 0:
                self.budget.cut("quiet", "second looks left out")
                return
            look(pair, 1.0)
            self.second_looks.add(self.ranks(pair))

    def ranks(self, pair: Pair) -> Pair:
        """The ranks that stand for a pair of hosts."""
        return self.site.rank(pair[0]), self.site.rank(pair[1])

    def fit_local(self) -> None:
        """Fit links between ranks of one host, one pair of each host at a time."""
        guess = self.effort.most_bytes / self.effort.quiet_us * 1e6
        for meeting in local_rounds(self.site.members)[: self.effort.local_rounds]:
            for pairs in (meeting, tuple((b, a) for a, b in meeting)):
                if any(pair not in self.local for pair in pairs):
                    fits = self.quiet.fit(pairs, [guess] * len(pairs))
                    self.local.update(zip(pairs, fits, strict=True))

    def shared(self, groups: Grouping, costs: Costs) -> tuple[Capacity, ...]:
        if len(self.site.hosts) < 2:
            return ()
        effort = self.effort
        return find_shared(
            self.recorder, self.site, groups, costs, effort.sharing_us, effort, self.budget
        )
