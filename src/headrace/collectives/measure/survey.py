"""The whole of measuring, as rank 0 tells it: who is near, what links cost, what they share.

1. A tournament of disjoint pairs, O(N) rounds: bandwidth between all hosts.
2. Groups from bandwidth. Disjoint pairs may have met on an uplink: that makes far pairs look
   farther, which is fine for grouping and useless for costs.
3. Quiet probes, nobody else talking: alpha and beta of all pairs, or of a few of each kind.
4. Concurrent flows: what hosts and groups share.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

import headrace
from headrace.collectives.measure.conduct import Member, Prober, Runner
from headrace.collectives.measure.costs import (
    Costs,
    complete,
    even_out,
    median,
    quiet_pairs,
    suspects,
)
from headrace.collectives.measure.effort import Effort, Progress
from headrace.collectives.measure.fit import LinkFit
from headrace.collectives.measure.group import Groups, group_hosts
from headrace.collectives.measure.profile import Profile
from headrace.collectives.measure.quiet import QuietProbes
from headrace.collectives.measure.recorder import Recorder, Site
from headrace.collectives.measure.sharing import Capacity, find_shared
from headrace.collectives.measure.tournament import Pair, local_rounds, tournament
from headrace.topology import Link, Topology

# where each stage ends on the progress bar
_TOURNAMENT_DONE, _QUIET_DONE = 0.2, 0.65


def measure_ranks(
    runner: Runner,
    rank_hosts: Sequence[str],
    *,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Profile | None:
    """Measure between the ranks of one executor group; every rank calls this.

    Parameters
    ----------
    runner : this rank's executor, connected, and idle for the time being.
    rank_hosts : name of every rank's host, the same at every rank.
    effort, progress : used at rank 0.

    Returns
    -------
    Profile | None
        The profile at rank 0, None elsewhere.

    Raises
    ------
    CommunicationError : at every rank, naming the host, if one dies or stops answering.
    """
    member = Member(runner, rank_hosts)
    if runner.rank != 0:
        member.follow()
        return None
    profile = survey(member, rank_hosts, effort=effort, progress=progress)
    member.stop()
    return profile


def survey(
    prober: Prober,
    rank_hosts: Sequence[str],
    *,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Measure everything with `prober`; `rank_hosts` names every rank's host."""
    return _Survey(prober, Site.of(rank_hosts), effort or Effort(), progress).run()


class _Survey:
    def __init__(
        self, prober: Prober, site: Site, effort: Effort, progress: Progress | None
    ) -> None:
        self.recorder = Recorder(prober)
        self.site = site
        self.effort = effort
        self.report = progress or (lambda _what, _share: None)
        self.quiet = QuietProbes(self.recorder, effort)

    def run(self) -> Profile:
        started, measured_at = time.monotonic(), time.time()
        bandwidth = tournament(
            self.recorder,
            self.site,
            self.effort,
            lambda what, share: self.report(what, share * _TOURNAMENT_DONE),
        )
        self.report("grouping hosts", _TOURNAMENT_DONE)
        groups = group_hosts(bandwidth)
        fits = self.host_fits(bandwidth, groups)
        costs = complete(bandwidth, groups, even_out(fits, groups))
        local: Costs = dict(self.local_fits())
        self.report("looking for what links share", _QUIET_DONE)
        shared = self.shared(groups, costs)
        self.report("done", 1.0)
        return Profile(
            topology=self.topology(costs, local, shared),
            groups=tuple(
                tuple(sorted(rank for host in group for rank in self.site.members[host]))
                for group in groups
            ),
            samples=self.recorder.table(),
            fits=self.fit_table(fits, local),
            measured_at=round(measured_at, 3),
            took_s=round(time.monotonic() - started, 3),
            valid_for_s=self.effort.valid_for_s,
            provenance={
                "made_by": f"headrace {headrace.__version__}",
                "effort": asdict(self.effort),
            },
        )

    def host_fits(self, bandwidth: np.ndarray, groups: Groups) -> Costs:
        """Fit the links between hosts, and those that look bad once more."""
        pairs = quiet_pairs(groups, self.effort.all_pairs_up_to, self.effort.pairs_per_kind)
        fits: Costs = {}

        def look(pair: Pair, done: float) -> None:
            here, there = (self.site.hosts[host] for host in pair)
            share = _TOURNAMENT_DONE + (_QUIET_DONE - _TOURNAMENT_DONE) * done
            self.report(f"link {here} to {there}", share)
            ranks = (self.site.rank(pair[0]), self.site.rank(pair[1]))
            [fits[pair]] = self.quiet.fit([ranks], [bandwidth[pair]])

        for index, pair in enumerate(pairs):
            look(pair, index / len(pairs))
        for pair in suspects(fits, groups)[: self.effort.second_looks]:
            look(pair, 1.0)
        return fits

    def local_fits(self) -> Iterator[tuple[Pair, LinkFit]]:
        """Fit links between ranks of one host, one pair of each host at a time."""
        guess = self.effort.most_bytes / self.effort.quiet_us * 1e6
        for meeting in local_rounds(self.site.members)[: self.effort.local_rounds]:
            for pairs in (meeting, tuple((b, a) for a, b in meeting)):
                fits = self.quiet.fit(pairs, [guess] * len(pairs))
                yield from zip(pairs, fits, strict=True)

    def shared(self, groups: Groups, costs: Costs) -> tuple[Capacity, ...]:
        if len(self.site.hosts) < 2:
            return ()
        effort = self.effort
        return find_shared(self.recorder, self.site, groups, costs, effort.sharing_us, effort)

    def topology(self, costs: Costs, local: Costs, shared: Sequence[Capacity]) -> Topology:
        home = self.site.rank_host
        typical = median(list(local.values())) if local else None
        links: list[Link] = []
        for src in range(len(home)):
            for dst in range(len(home)):
                if src != dst:
                    near = home[src] == home[dst]
                    fit = local.get((src, dst), typical) if near else costs[home[src], home[dst]]
                    assert fit is not None, "ranks that share a host have been probed"
                    links.append(_link(src, dst, fit))
        index = {(link.src, link.dst): i for i, link in enumerate(links)}
        return Topology(
            name=f"measured-{len(self.site.hosts)}-hosts",
            hosts=self.site.hosts,
            rank_host=home,
            links=tuple(links),
            shared=tuple(capacity.over(self.site, index) for capacity in shared),
        )

    def fit_table(self, fits: Costs, local: Costs) -> dict[str, np.ndarray]:
        rows = {(self.site.rank(a), self.site.rank(b)): fit for (a, b), fit in fits.items()} | local
        table: dict[str, np.ndarray] = {
            "src": np.array([src for src, _ in rows], dtype=np.int32),
            "dst": np.array([dst for _, dst in rows], dtype=np.int32),
        }
        for name in LinkFit.__slots__:
            table[name] = np.array([getattr(fit, name) for fit in rows.values()], dtype=np.float64)
        return table


def _link(src: int, dst: int, fit: LinkFit) -> Link:
    # four digits: the rest is noise, and plans should not hinge on it
    return Link(
        src=src,
        dst=dst,
        alpha_us=float(f"{fit.alpha_us:.4g}"),
        beta_us_per_mb=float(f"{fit.beta_us_per_mb:.4g}"),
    )
