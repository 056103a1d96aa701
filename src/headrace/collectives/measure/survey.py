"""The whole of measuring, as rank 0 tells it: who is near, what links cost, what they share.

1. A tournament of disjoint pairs, O(N) rounds: latency and bandwidth between all hosts.
2. Groups from bandwidth. Disjoint pairs may have met on an uplink: that makes far pairs look
   farther, which is fine for grouping and useless for costs.
3. Quiet probes, nobody else talking: alpha and beta of all pairs, or of a few for each kind.
4. Concurrent flows: what hosts and groups share (see `sharing`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.collectives.measure.conduct import Prober
from headrace.collectives.measure.fit import LinkFit, Sample, fit_link
from headrace.collectives.measure.group import Groups, group_hosts
from headrace.collectives.measure.probe import ACK_BYTES, Flow, Manner
from headrace.collectives.measure.profile import Profile
from headrace.collectives.measure.recorder import (
    BULK_CHUNKS,
    Recorder,
    Site,
    Stage,
    bulk_chunk_bytes,
)
from headrace.collectives.measure.sharing import find_shared
from headrace.collectives.measure.tournament import Pair, local_rounds, rounds
from headrace.topology import BYTES_PER_MB, Link, Topology

Progress = Callable[[str, float], None]
"""Called with what is being done and the share (0 to 1) of the whole that is done."""

Costs = dict[Pair, LinkFit]
"""(source, destination) -> fit."""

_FIRST_BYTES = 65_536
_GROWTH = 8.0
_ECHOES = (BULK_CHUNKS, 3 * BULK_CHUNKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard to look.

    Attributes
    ----------
    tournament_us, quiet_us, sharing_us : how long one bulk transfer should take at each stage.
    most_bytes : largest bulk transfer, whatever the rate.
    repeats : runs of every bulk transfer that counts.
    all_pairs_up_to : probe every ordered pair of hosts quietly up to this many hosts.
    pairs_per_class : else this many for each ordered pair of groups.
    local_rounds : rounds of pairs of ranks that share a host.
    valid_for_s : how long the profile is worth something.
    """

    tournament_us: float = 20_000.0
    quiet_us: float = 40_000.0
    sharing_us: float = 30_000.0
    most_bytes: float = 8e6
    repeats: int = 2
    all_pairs_up_to: int = 6
    pairs_per_class: int = 2
    local_rounds: int = 6
    valid_for_s: float = 3600.0


def survey(
    prober: Prober,
    rank_hosts: Sequence[str],
    *,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Measure everything; `rank_hosts` names every rank's host."""
    return _Survey(prober, Site.of(rank_hosts), effort or Effort(), progress).run()


class _Survey:
    def __init__(
        self, prober: Prober, site: Site, effort: Effort, progress: Progress | None
    ) -> None:
        self.recorder = Recorder(prober)
        self.site = site
        self.effort = effort
        self.report = progress or (lambda _what, _share: None)

    def run(self) -> Profile:
        started, measured_at = time.monotonic(), time.time()
        hosts = len(self.site.hosts)
        bandwidth = self.tournament()
        self.report("grouping hosts", 0.3)
        groups = group_hosts(bandwidth)
        fits: Costs = dict(self.quiet_hosts(bandwidth, groups))
        costs = complete(bandwidth, groups, fits)
        local: Costs = dict(self.quiet_local())
        self.report("looking for shared links", 0.7)
        shared = ()
        if hosts > 1:
            shared = find_shared(
                self.recorder, self.site, groups, costs, self.effort.sharing_us, self.effort
            )
        links = self.links(costs, local)
        self.report("done", 1.0)
        index = {(link.src, link.dst): i for i, link in enumerate(links)}
        return Profile(
            topology=Topology(
                name=f"measured-{hosts}-hosts",
                hosts=self.site.hosts,
                rank_host=self.site.rank_host,
                links=links,
                shared=tuple(capacity.over(self.site, index) for capacity in shared),
            ),
            groups=tuple(
                tuple(sorted(rank for host in group for rank in self.site.members[host]))
                for group in groups
            ),
            samples=self.recorder.table(),
            fits=self.fit_table(fits, local),
            measured_at=round(measured_at, 3),
            took_s=round(time.monotonic() - started, 3),
            valid_for_s=self.effort.valid_for_s,
        )

    # 1. tournament -------------------------------------------------------------------------

    def tournament(self) -> np.ndarray:
        """Return (hosts, hosts) bytes per second from everyone to everyone."""
        hosts = len(self.site.hosts)
        bandwidth = np.ones((hosts, hosts))
        plan = rounds(hosts) if hosts > 1 else ()
        for index, meeting in enumerate(plan):
            self.report(f"tournament round {index + 1} of {len(plan)}", 0.3 * index / len(plan))
            for pairs in (meeting, tuple((b, a) for a, b in meeting)):
                ranks = [(self.site.rank(a), self.site.rank(b)) for a, b in pairs]
                flows = [Flow(a, b, ACK_BYTES) for a, b in ranks]
                self.recorder.probe(
                    Stage.TOURNAMENT, Manner.ONE_AFTER_ANOTHER, _ECHOES[0], flows, 2
                )
                for (a, b), rate in zip(pairs, self.rates(ranks), strict=True):
                    bandwidth[a, b] = rate
        return bandwidth

    def rates(self, pairs: Sequence[Pair]) -> list[float]:
        """Bytes per second between disjoint pairs of ranks, from transfers of growing size."""
        effort = self.effort
        sizes = np.full(len(pairs), float(_FIRST_BYTES))
        while True:
            times = self.recorder.bulk(Stage.TOURNAMENT, pairs, sizes.tolist(), 1)[:, 0]
            short = (times < effort.tournament_us / 2) & (sizes < effort.most_bytes)
            if not short.any():
                return (sizes / times * 1e6).tolist()
            growth = np.clip(effort.tournament_us / times, 1.0, _GROWTH)
            sizes = np.minimum(
                np.where(short, sizes * np.maximum(growth, 2.0), sizes), effort.most_bytes
            )

    # 3. quiet probes -----------------------------------------------------------------------

    def quiet_hosts(self, bandwidth: np.ndarray, groups: Groups) -> Iterator[tuple[Pair, LinkFit]]:
        pairs = quiet_pairs(groups, self.effort.all_pairs_up_to, self.effort.pairs_per_class)
        for index, (a, b) in enumerate(pairs):
            names = f"{self.site.hosts[a]} -> {self.site.hosts[b]}"
            self.report(f"link {names}", 0.3 + 0.4 * index / len(pairs))
            ranks = (self.site.rank(a), self.site.rank(b))
            yield (a, b), self.quiet([ranks], [bandwidth[a, b]])[0]

    def quiet_local(self) -> Iterator[tuple[Pair, LinkFit]]:
        for meeting in local_rounds(self.site.members)[: self.effort.local_rounds]:
            for pairs in (meeting, tuple((b, a) for a, b in meeting)):
                rate = [self.effort.most_bytes / self.effort.quiet_us * 1e6] * len(pairs)
                yield from zip(pairs, self.quiet(pairs, rate), strict=True)

    def quiet(self, pairs: Sequence[Pair], bytes_per_s: Sequence[float]) -> list[LinkFit]:
        """Fit the links between disjoint pairs of ranks, given a guess of their bandwidth."""
        effort = self.effort
        samples: list[list[Sample]] = [[] for _ in pairs]

        def run(manner: Manner, chunks: int, sizes: Sequence[int], repeats: int) -> np.ndarray:
            flows = [Flow(*pair, size) for pair, size in zip(pairs, sizes, strict=True)]
            times = self.recorder.probe(Stage.QUIET, manner, chunks, flows, repeats)
            for mine, size, row in zip(samples, sizes, times.tolist(), strict=True):
                mine.extend(Sample(manner, chunks, size, time_us) for time_us in row)
            return times

        for echoes in _ECHOES:
            run(Manner.ONE_AFTER_ANOTHER, echoes, [ACK_BYTES] * len(pairs), 2 * effort.repeats)
        guess = np.asarray(bytes_per_s, dtype=float)
        for part in (0.25, 1.0):
            # the first transfer corrects the guess for the second
            room = guess * effort.quiet_us / 1e6 * part
            total = np.clip(room, _FIRST_BYTES / 4, effort.most_bytes)
            sizes = [bulk_chunk_bytes(size) for size in total.tolist()]
            times = run(Manner.AT_ONCE, BULK_CHUNKS, sizes, effort.repeats)
            if part < 1.0:
                run(Manner.ONE_AFTER_ANOTHER, BULK_CHUNKS, sizes, 1)
            guess = np.minimum(np.array(sizes) * BULK_CHUNKS / times.min(axis=1) * 1e6, guess * 4)
        return [fit_link(mine) for mine in samples]

    # results -------------------------------------------------------------------------------

    def links(self, costs: Costs, local: Costs) -> tuple[Link, ...]:
        home = self.site.rank_host
        typical = _median(list(local.values())) if local else None
        links: list[Link] = []
        for src in range(len(home)):
            for dst in range(len(home)):
                if src == dst:
                    continue
                near = home[src] == home[dst]
                fit = local.get((src, dst), typical) if near else costs[home[src], home[dst]]
                assert fit is not None, "ranks that share a host have been probed"
                links.append(_link(src, dst, fit))
        return tuple(links)

    def fit_table(self, fits: Costs, local: Costs) -> dict[str, np.ndarray]:
        rows = {(self.site.rank(a), self.site.rank(b)): fit for (a, b), fit in fits.items()} | local
        table: dict[str, np.ndarray] = {
            "src": np.array([src for src, _ in rows], dtype=np.int32),
            "dst": np.array([dst for _, dst in rows], dtype=np.int32),
        }
        for name in LinkFit.__slots__:
            table[name] = np.array([getattr(fit, name) for fit in rows.values()], dtype=np.float64)
        return table


def quiet_pairs(groups: Groups, all_pairs_up_to: int, per_class: int) -> tuple[Pair, ...]:
    """Return the ordered pairs of hosts to probe with nobody else talking.

    All of them where hosts are few; else `per_class` for each ordered pair of groups (and inside
    each group), spread over different hosts.
    """
    hosts = sorted(host for group in groups for host in group)
    if len(hosts) <= all_pairs_up_to:
        return tuple((a, b) for a in hosts for b in hosts if a != b)
    pairs: list[Pair] = []
    for here in groups:
        for there in groups:
            for turn in range(per_class):
                a = here[turn % len(here)]
                b = there[(turn + (here == there)) % len(there)]
                if a != b and (a, b) not in pairs:
                    pairs.append((a, b))
    return tuple(pairs)


def complete(bandwidth: np.ndarray, groups: Groups, fits: Costs) -> Costs:
    """Return costs of all ordered pairs of hosts from those of some.

    A pair that was not probed quietly takes the median of its kind (source's group, destination's
    group), but is never faster than its ends: inside a group, where tournament pairs met on no
    uplink, a pair that was clearly slower than its kind there keeps that bandwidth.
    """
    group_of = {host: index for index, group in enumerate(groups) for host in group}
    kinds: dict[Pair, list[Pair]] = {}
    for a in group_of:
        for b in group_of:
            if a != b:
                kinds.setdefault((group_of[a], group_of[b]), []).append((a, b))
    costs: Costs = {}
    for (here, there), pairs in kinds.items():
        typical = _median([fits[pair] for pair in pairs if pair in fits])
        usual = float(np.median([bandwidth[pair] for pair in pairs]))
        for pair in pairs:
            slow = here == there and bandwidth[pair] < 0.75 * usual
            beta = typical.beta_us_per_mb * (usual / bandwidth[pair] if slow else 1.0)
            costs[pair] = fits.get(pair) or _with_beta(typical, beta)
    # a host's best link inside its group says how fast its own port is
    floor = {
        host: min((costs[host, peer].beta_us_per_mb for peer in group if peer != host), default=0.0)
        for group in groups
        for host in group
    }
    for (a, b), fit in costs.items():
        if (a, b) not in fits and group_of[a] != group_of[b]:
            costs[a, b] = _with_beta(fit, max(fit.beta_us_per_mb, floor[a], floor[b]))
    return costs


def _with_beta(fit: LinkFit, beta: float) -> LinkFit:
    changed = {name: getattr(fit, name) for name in LinkFit.__slots__}
    return LinkFit(**(changed | {"beta_us_per_mb": beta}))


def _median(fits: Sequence[LinkFit]) -> LinkFit:
    return LinkFit(
        **{name: float(np.median([getattr(f, name) for f in fits])) for name in LinkFit.__slots__}
    )


def _link(src: int, dst: int, fit: LinkFit) -> Link:
    # four digits: the rest is noise, and plans should not hinge on it
    return Link(
        src=src,
        dst=dst,
        alpha_us=float(f"{fit.alpha_us:.4g}"),
        beta_us_per_mb=float(f"{fit.beta_us_per_mb:.4g}"),
    )
