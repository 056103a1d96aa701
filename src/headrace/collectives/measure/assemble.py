"""Parts of a profile from the results about pairs of ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.artifact import columns_of
from headrace.collectives.measure.fit.alpha_beta import LinkFit
from headrace.collectives.measure.fit.link_classes import Costs, median
from headrace.collectives.measure.probes.recorder import Site
from headrace.collectives.measure.probes.round_robin import Pair, RoundRobin
from headrace.collectives.measure.probes.trials import Capacity
from headrace.collectives.measure.racks.partition import Grouping
from headrace.topology import Link, Topology


@dataclass(frozen=True, slots=True, eq=False)
class Findings:
    """Results by rank, as numbered at the start of the survey.

    In a profile the ranks of `site` are renumbered, as some may have been lost.

    Attributes
    ----------
    site : the surviving ranks.
    fits, local : links between hosts, and inside them.
    kernel : (ranks, ranks) of `group_prober.Prober.round_trips`.
    """

    site: Site
    fits: Mapping[Pair, LinkFit]
    local: Mapping[Pair, LinkFit]
    round_robin: RoundRobin
    kernel: np.ndarray

    @property
    def place(self) -> dict[int, int]:
        """Rank in the survey -> rank in the profile."""
        return {rank: index for index, rank in enumerate(self.site.ranks)}

    def rank_groups(self, groups: Grouping) -> Grouping:
        """Return groups of hosts as groups of ranks."""
        place, members = self.place, self.site.members
        return tuple(
            tuple(sorted(place[rank] for host in group for rank in members[host]))
            for group in groups
        )

    def topology(self, costs: Costs, shared: Sequence[Capacity]) -> Topology:
        """Return the topology of all ranks, from the costs between hosts."""
        ranks, home = self.site.ranks, self.site.rank_host
        typical = median(list(self.local.values())) if self.local else None
        links: list[Link] = []
        for a, src in enumerate(ranks):
            for b, dst in enumerate(ranks):
                if a != b:
                    near = home[a] == home[b]
                    fit = self.local.get((src, dst), typical) if near else costs[home[a], home[b]]
                    assert fit is not None, "ranks that share a host have been probed"
                    links.append(link(a, b, fit.alpha_us, fit.beta_us_per_mb))
        index = {(k.src, k.dst): i for i, k in enumerate(links)}
        return Topology(
            name=f"measured-{len(self.site.hosts)}-hosts",
            hosts=self.site.hosts,
            rank_host=home,
            links=tuple(links),
            shared=tuple(capacity.over(self.site, index) for capacity in shared),
        )

    def fit_table(self) -> dict[str, np.ndarray]:
        """Return one row per pair of ranks with unloaded probes."""
        place = self.place
        rows = {
            (place[a], place[b]): fit
            for (a, b), fit in {**self.fits, **self.local}.items()
            if a in place and b in place
        }
        table = ends(list(rows))
        for name in LinkFit.__slots__:
            table[name] = np.array([getattr(fit, name) for fit in rows.values()], dtype=np.float64)
        return table

    def pair_table(self) -> dict[str, np.ndarray]:
        """Return one row per ordered pair of the round-robin; see `Profile.pairs`."""
        place, rates = self.place, self.round_robin.rates
        pairs = [(a, b) for a, b in rates if a in place and b in place]
        echoes = [self.round_robin.echoes[pair] for pair in pairs]
        return {
            **ends([(place[a], place[b]) for a, b in pairs]),
            "bytes_per_s": np.array([rates[pair] for pair in pairs], dtype=np.float64),
            "median_rtt_us": np.array([np.median(row) for row in echoes], dtype=np.float64),
            "min_rtt_us": np.array([row.min() for row in echoes], dtype=np.float64),
            "kernel_rtt_us": np.array([self.kernel[pair] for pair in pairs], dtype=np.float64),
        }


def ends(pairs: Sequence[Pair]) -> dict[str, np.ndarray]:
    """Return the columns `src` and `dst` of a table of a profile."""
    return columns_of(pairs, {"src": np.int32, "dst": np.int32})


def link(src: int, dst: int, alpha_us: float, beta_us_per_mb: float) -> Link:
    """Return a link with costs of four digits: the rest is noise, plans should not hinge on it."""
    return Link(
        src=src,
        dst=dst,
        alpha_us=float(f"{alpha_us:.4g}"),
        beta_us_per_mb=float(f"{beta_us_per_mb:.4g}"),
    )
