"""Permutation traffic (cyclic shifts): detects oversubscribed uplinks that single pairs do not.

Where an uplink is as fast as one host, a lone pair across it is as fast as one inside. In
permutation traffic every host sends and receives one flow: flows inside a rack keep the host's
rate, those that leave it divide the uplink. The cyclic shift by k has host i send to host i + k;
all shifts together have every ordered pair once, in O(N) probes.
"""

from collections.abc import Iterator

import numpy as np

from headrace.collectives.measure.budget import Budget, ProbeEffort, ProgressCallback
from headrace.collectives.measure.probes.recorder import Recorder, Series, Site
from headrace.collectives.measure.probes.round_robin import Pair, by_host, filled, rounds

LEAST_HOSTS = 4
"""With fewer there are no two racks of which one has two hosts to compete."""

_FEW = 9  # hosts up to which too few shifts have all hosts of a rack send out of it at once


class PermutationTraffic:
    """Rates under permutation traffic by pair of ranks, which outlive the loss of a host."""

    def __init__(self, recorder: Recorder, effort: ProbeEffort, budget: Budget) -> None:
        self.rates: dict[Pair, float] = {}
        self._sent: set[frozenset[Pair]] = set()
        self._recorder = recorder
        self._effort = effort
        self._budget = budget

    def measure(
        self, site: Site, alone: np.ndarray, until: float, progress: ProgressCallback
    ) -> np.ndarray | None:
        """Return (hosts, hosts) bytes per second; None if the budget does not cover every pair.

        `alone` are the bandwidths of single pairs, which size the flows to equal times alone.
        """
        hosts = len(site.hosts)
        plan = [*cyclic_shifts(hosts), *(mixed_directions(hosts) if hosts <= _FEW else ())]
        for index, pairs in enumerate(plan):
            if self._budget.left_s(until) <= 0:
                self._budget.cut(
                    "permutations", f"{len(plan) - index} of {len(plan)} rounds left out"
                )
                break
            progress(f"permutations, round {index + 1} of {len(plan)}", index / len(plan))
            self._send(site, alone, pairs)
        rates = by_host(self.rates, site)
        measured = np.isfinite(rates)
        # one direction of a pair is enough
        return filled(rates) if (measured | measured.T).sum() >= hosts * (hosts - 1) else None

    def _send(self, site: Site, alone: np.ndarray, pairs: list[Pair]) -> None:
        ranks = [(site.rank(a), site.rank(b)) for a, b in pairs]
        if frozenset(ranks) in self._sent:
            return
        most = self._effort.most_bytes
        sizes = [min(alone[pair] * self._effort.crowd_us / 1e6, most) for pair in pairs]
        times = self._recorder.bulk(Series.PERMUTATION, ranks, sizes, 1)[:, 0]
        for pair, size, time_us in zip(ranks, sizes, times.tolist(), strict=True):
            self.rates.setdefault(pair, size / time_us * 1e6)
        self._sent.add(frozenset(ranks))


def cyclic_shifts(hosts: int) -> Iterator[list[Pair]]:
    """Yield rounds that have every ordered pair of `hosts` once, each host once on either side.

    Two hosts never send to each other at once: the shift by half of them is split in two rounds.
    """
    for k in range(1, hosts):
        pairs = [(i, (i + k) % hosts) for i in range(hosts)]
        if 2 * k == hosts:
            yield pairs[:k]
            yield pairs[k:]
        else:
            yield pairs


def mixed_directions(hosts: int) -> Iterator[list[Pair]]:
    """Yield the round-robin rounds with every other pair reversed, each followed by its reverse.

    In the round-robin itself the lower number always sends first: the first and the last host,
    say, if they share a rack, never send at the same time.
    """
    for forward in rounds(hosts):
        pairs = [(b, a) if index % 2 else (a, b) for index, (a, b) in enumerate(forward)]
        yield pairs
        yield [(b, a) for a, b in pairs]
