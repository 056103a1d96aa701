"""Maximum-likelihood partition of hosts into racks, by hill climbing over concurrent rounds.

Where an uplink is as fast as one host, no single pair shows it, and pairs that shared one by
chance mislead. So a partition is scored on whole rounds (`rack_fit`); the search starts from the
racks that bandwidths of pairs and under permutation traffic suggest.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from headrace.collectives.measure.embed.distances import pair_distances
from headrace.collectives.measure.probes.probe import Manner
from headrace.collectives.measure.probes.recorder import Series, Site
from headrace.collectives.measure.racks.fluid import Rounds
from headrace.collectives.measure.racks.likelihood import (
    UNLIKE,
    RackFit,
    best_of,
    equal_hosts,
    fit_groupings,
    fit_racks,
    fit_uplinks,
    most_promising,
)
from headrace.collectives.measure.racks.linkage import EVIDENCE, cuts, group_hosts, log_partitions
from headrace.collectives.measure.racks.partition import Grouping, groups_of, labels_of, neighbours

MOST_HOSTS = 24
"""With more hosts pair bandwidths decide: the search takes seconds."""

_STARTS, _CLIMBS = 4, 2  # starts that are fitted, and climbed from
_REFITTED = 3  # best neighbours that are fitted
_CLEAR = 60.0  # log-likelihood by which a model of uplinks is dropped without a search
_MOST_SPLIT = 6


def concurrent_rounds(samples: Mapping[str, np.ndarray], site: Site) -> Rounds:
    """Return the rounds of round-robin and permutations, of each the last, longest transfers.

    Parameters
    ----------
    samples : as `recorder.Recorder.table` of the ranks of `site`.
    """
    stage = samples["stage"]
    bulk = (samples["manner"] == Manner.AT_ONCE) & (samples["repeat"] == 0)
    rows = np.flatnonzero(bulk & ((stage == Series.ROUND_ROBIN) | (stage == Series.PERMUTATION)))
    home = np.array(site.rank_host)
    last: dict[tuple[int, frozenset[tuple[int, int]]], np.ndarray] = {}
    for probe in np.unique(samples["probe"][rows]):
        mine = rows[samples["probe"][rows] == probe]
        ends = zip(samples["src"][mine].tolist(), samples["dst"][mine].tolist(), strict=True)
        last[int(stage[mine[0]]), frozenset(ends)] = mine
    n = len(site.hosts)
    size, took = np.zeros((len(last), n)), np.full((len(last), n), np.nan)
    dst = np.full((len(last), n), -1)
    for index, mine in enumerate(last.values()):
        src = home[samples["src"][mine]]
        dst[index, src] = home[samples["dst"][mine]]
        size[index, src] = samples["chunks"][mine] * samples["chunk_bytes"][mine]
        took[index, src] = samples["us"][mine]
    for row in dst:
        row[row < 0] = np.setdiff1d(np.arange(n), row)
    return Rounds(size=size, dst=dst, src=np.argsort(dst, axis=1), took_us=took)


def search_racks(
    rounds: Rounds,
    bandwidths: Sequence[np.ndarray],
    enough: Callable[[], bool] = lambda: False,
) -> Grouping:
    """Return the likeliest partition given `rounds`; one group if none is significantly better.

    Parameters
    ----------
    bandwidths : (hosts, hosts) bytes per second, of pairs and under permutation traffic; their
        partitions are the starts of the search.
    enough : polled now and then; if true, the best so far is returned.
    """
    single_rack = (tuple(range(rounds.hosts)),)
    apparent = {group_hosts(bandwidth) for bandwidth in bandwidths} - {single_rack}
    more: set[Grouping] = {tuple((host,) for host in range(rounds.hosts))}
    for bandwidth in bandwidths:
        more.update(cuts(pair_distances(bandwidth=bandwidth)[0]))
    search = [
        _Search(replace(rounds, fair=fair), apparent, more - apparent - {single_rack}, enough)
        for fair in (False, True)
    ]
    # proportional or max-min fair division of uplinks: whichever is likelier
    search.sort(key=lambda count_search: -count_search.starts[0].score)
    best = search[0].climb()
    if search[1].starts[0].score > search[0].starts[0].score - _CLEAR:
        search.sort(key=lambda count_search: -count_search.climb().score)
        best = search[0].climb()
    best = search[0].polish(best)
    again = fit_racks(search[1].rounds, best.groups)
    if again.score > best.score:
        best = search[1].polish(again)
    if best.score - fit_racks(rounds, single_rack).score < EVIDENCE * log_partitions(rounds.hosts):
        return single_rack
    return best.groups


class _Search:
    """The search under one model of the division of uplinks.

    Attributes
    ----------
    starts : the best starting points, the likeliest first.
    """

    def __init__(
        self,
        rounds: Rounds,
        apparent: Collection[Grouping],
        more: Collection[Grouping],
        enough: Callable[[], bool],
    ) -> None:
        self.rounds = rounds
        equal = equal_hosts(rounds)
        likely = most_promising(rounds, sorted(more), equal, _STARTS)
        starts = fit_groupings(rounds, [*sorted(apparent), *likely], equal)
        self.starts = sorted(starts, key=lambda start: -start.score)
        self._enough = enough
        self._top: RackFit | None = None

    def climb(self) -> RackFit:
        """Return the best local optimum of the climbs from the starts."""
        if self._top is None:
            visited = {start.groups for start in self.starts}
            tops = [self._climb(start, visited) for start in self.starts[:_CLIMBS]]
            self._top = fit_uplinks(self.rounds, best_of(tops))
        return self._top

    def polish(self, best: RackFit) -> RackFit:
        """Climb on from `best`, with every uplink fitted by itself."""
        visited = {best.groups}
        while fresh := self._around(best, visited):
            host = best.rates.host[0]
            promising = most_promising(self.rounds, fresh, host, _REFITTED)
            close = fit_groupings(self.rounds, promising, host)
            closer = best_of([fit_uplinks(self.rounds, candidate) for candidate in close])
            if closer.score <= best.score:
                break
            best = closer
        return best

    def _climb(self, here: RackFit, visited: set[Grouping]) -> RackFit:
        while fresh := self._around(here, visited):
            host = here.rates.host[0]
            equal = np.full(self.rounds.hosts, np.median(host))
            # a rack may have been fitted as slow hosts
            same = np.abs(np.log(host / equal)).max() < UNLIKE
            better = here
            for rates in (equal,) if same else (host, equal):
                promising = most_promising(self.rounds, fresh, rates, _REFITTED)
                better = best_of([better, *fit_groupings(self.rounds, promising, rates)])
            if better is here:
                break
            here = better
        return here

    def _around(self, here: RackFit, visited: set[Grouping]) -> list[Grouping]:
        """Return neighbours not yet `visited` and add them; none once `enough` is true."""
        if self._enough():
            return []
        around = {groups_of(row) for row in neighbours(labels_of(here.groups), _MOST_SPLIT)}
        fresh = sorted(around - visited)
        visited |= around
        return fresh
