"""Racks from everything that was sent at the same time: the partition that explains it best.

Where an uplink is as fast as one host, no pair by itself shows it, and rates of pairs that met on
one by chance mislead those who look at pairs. So a partition is judged by what it says of whole
rounds (`explanation`), and looked for by climbing from what pairs and crowds look like.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from headrace.collectives.measure.distances import pair_distances
from headrace.collectives.measure.fluid import Rounds
from headrace.collectives.measure.group.kmeans import groups_of, labels_of
from headrace.collectives.measure.group.racks import EVIDENCE, cuts, group_hosts, log_partitions
from headrace.collectives.measure.partition import Grouping, neighbours
from headrace.collectives.measure.probe import Manner
from headrace.collectives.measure.rack_fit import (
    UNLIKE,
    RackFit,
    best_of,
    equal_hosts,
    fit,
    fit_groupings,
    fit_uplinks,
    most_promising,
)
from headrace.collectives.measure.recorder import Series, Site

MOST_HOSTS = 24
"""With more, what pairs show has to do: the search takes seconds."""

_STARTS, _CLIMBS = 4, 2  # looked at, and climbed from
_REFITTED = 3  # best neighbours that are looked at closely
_CLEAR = 60.0  # so much less likely, a way of dividing uplinks is not looked at further
_MOST_SPLIT = 6


def concurrent_rounds(samples: Mapping[str, np.ndarray], site: Site) -> Rounds:
    """Return the rounds of the tournament and the crowd, of each the last and longest transfers.

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
    """Return the partition that explains `rounds` best; one group if none is surely better.

    Parameters
    ----------
    bandwidths : (hosts, hosts) bytes per second, as pairs and crowds show them; the search begins
        with what these look like.
    enough : asked now and then; if true, the best so far has to do.
    """
    one = (tuple(range(rounds.hosts)),)
    seem = {group_hosts(bandwidth) for bandwidth in bandwidths} - {one}
    places: set[Grouping] = {tuple((host,) for host in range(rounds.hosts))}
    for bandwidth in bandwidths:
        places.update(cuts(pair_distances(bandwidth=bandwidth)[0]))
    search = [
        _Search(replace(rounds, fair=fair), seem, places - seem - {one}, enough)
        for fair in (False, True)
    ]
    # how uplinks are divided is the network's way: whichever explains more
    search.sort(key=lambda way: -way.starts[0].score)
    best = search[0].climb()
    if search[1].starts[0].score > search[0].starts[0].score - _CLEAR:
        search.sort(key=lambda way: -way.climb().score)
        best = search[0].climb()
    best = search[0].polish(best)
    again = fit(search[1].rounds, best.groups)
    if again.score > best.score:
        best = search[1].polish(again)
    if best.score - fit(rounds, one).score < EVIDENCE * log_partitions(rounds.hosts):
        return one
    return best.groups


class _Search:
    """The search of one way of dividing uplinks.

    Attributes
    ----------
    starts : the best places to climb from, the very best first.
    """

    def __init__(
        self,
        rounds: Rounds,
        seem: Collection[Grouping],
        places: Collection[Grouping],
        enough: Callable[[], bool],
    ) -> None:
        self.rounds = rounds
        equal = equal_hosts(rounds)
        likely = most_promising(rounds, sorted(places), equal, _STARTS)
        starts = fit_groupings(rounds, [*sorted(seem), *likely], equal)
        self.starts = sorted(starts, key=lambda start: -start.score)
        self._enough = enough
        self._top: RackFit | None = None

    def climb(self) -> RackFit:
        """Return the best that climbing from the starts leads to."""
        if self._top is None:
            known = {start.groups for start in self.starts}
            tops = [self._climb(start, known) for start in self.starts[:_CLIMBS]]
            self._top = fit_uplinks(self.rounds, best_of(tops))
        return self._top

    def polish(self, best: RackFit) -> RackFit:
        """Climb once more, with uplinks fitted each by itself."""
        known = {best.groups}
        while fresh := self._around(best, known):
            host = best.rates.host[0]
            promising = most_promising(self.rounds, fresh, host, _REFITTED)
            close = fit_groupings(self.rounds, promising, host)
            closer = best_of([fit_uplinks(self.rounds, found) for found in close])
            if closer.score <= best.score:
                break
            best = closer
        return best

    def _climb(self, here: RackFit, known: set[Grouping]) -> RackFit:
        while fresh := self._around(here, known):
            host = here.rates.host[0]
            equal = np.full(self.rounds.hosts, np.median(host))
            # a rack may have been taken for slow hosts
            same = np.abs(np.log(host / equal)).max() < UNLIKE
            better = here
            for rates in (equal,) if same else (host, equal):
                promising = most_promising(self.rounds, fresh, rates, _REFITTED)
                better = best_of([better, *fit_groupings(self.rounds, promising, rates)])
            if better is here:
                break
            here = better
        return here

    def _around(self, here: RackFit, known: set[Grouping]) -> list[Grouping]:
        """Neighbours that are not `known` yet, and now are; none if it is time to end."""
        if self._enough():
            return []
        around = {groups_of(row) for row in neighbours(labels_of(here.groups), _MOST_SPLIT)}
        fresh = sorted(around - known)
        known |= around
        return fresh
