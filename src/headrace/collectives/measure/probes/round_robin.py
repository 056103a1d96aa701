"""Round-robin of disjoint pairs: latency and bandwidth of all in O(N) rounds (PLink 4.1.1)."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headrace.collectives.measure.budget import Budget, ProbeEffort, ProgressCallback
from headrace.collectives.measure.probes.recorder import Recorder, Series, Site

Pair = tuple[int, int]

_FIRST_BYTES = 65_536.0
_GROWTH = (2.0, 8.0)
_FIRST_SHARE = 0.25  # of the median size that earlier pairs needed
_LEAST_US = 2_000.0
_LEAST_ECHOES = 6
_WARM_UP_ROUNDS = 2  # slower than the rest: programs and memory are new


class RoundRobin:
    """Results by pair of ranks, which outlive the loss of a host.

    Each pair is probed once, first one way and then the other; no host is in two probes at once.
    Disjoint pairs can share an uplink: the bandwidths tell near from far, not the cost of links.

    Attributes
    ----------
    rates : bytes per second from rank to rank.
    echoes : round trips in us, as timed by the first rank of the pair.
    """

    def __init__(self, recorder: Recorder, effort: ProbeEffort, budget: Budget) -> None:
        self.rates: dict[Pair, float] = {}
        self.echoes: dict[Pair, np.ndarray] = {}
        self._recorder = recorder
        self._budget = budget
        self._transfer_us = effort.tournament_us
        self._echoes = effort.echoes
        self._most_bytes = effort.most_bytes
        self._first_bytes = _FIRST_BYTES

    def measure(self, site: Site, until: float, progress: ProgressCallback) -> np.ndarray:
        """Return (hosts, hosts) bytes per second from row to column.

        `until` is the share of the budget after which it ends: pairs that were not probed by then
        are estimated (`filled`).
        """
        plan = self._remaining(site)
        for index, pairs in enumerate(plan):
            left_s = self._budget.left_s(until)
            if index and left_s <= 0:
                missed = len(plan) - index
                self._budget.cut("round-robin", f"{missed} of {len(plan)} rounds left out")
                break
            progress(f"round-robin, round {index + 1} of {len(plan)}", index / len(plan))
            started = self._budget.now
            self._probe(pairs)
            if index >= _WARM_UP_ROUNDS:
                self._shorten(len(plan) - index - 1, left_s, self._budget.now - started)
        return filled(by_host(self.rates, site))

    def _remaining(self, site: Site) -> list[list[Pair]]:
        """Return the remaining rounds, as pairs of ranks."""
        plan: list[list[Pair]] = []
        for forward in rounds(len(site.hosts)):
            for pairs in (forward, tuple((b, a) for a, b in forward)):
                plan.append([(site.rank(a), site.rank(b)) for a, b in pairs])
        if not self.rates:
            return plan
        return packed([pair for pairs in plan for pair in pairs if pair not in self.rates])

    def _probe(self, pairs: Sequence[Pair]) -> None:
        echoes = self._recorder.echo(pairs, self._echoes)
        rates = self._measure(pairs)
        for pair, row, rate in zip(pairs, echoes, rates, strict=True):
            self.echoes[pair], self.rates[pair] = row, rate

    def _shorten(self, rounds_left: int, left_s: float, took_s: float) -> None:
        """Halve transfers and echoes if the remaining rounds would exceed the budget."""
        if rounds_left * took_s <= max(left_s - took_s, 0.0) or self._transfer_us <= _LEAST_US:
            return
        self._transfer_us = max(self._transfer_us / 2, _LEAST_US)
        self._echoes = max(self._echoes // 2, _LEAST_ECHOES)
        self._budget.cut("round-robin", f"transfers of {self._transfer_us / 1e3:.3g} ms")

    def _measure(self, pairs: Sequence[Pair]) -> list[float]:
        """Bytes per second between disjoint pairs of ranks, from transfers of growing size.

        The growth also takes every connection past TCP's slow start.
        """
        sizes = np.full(len(pairs), self._first_bytes)
        while True:
            times = self._recorder.bulk(Series.ROUND_ROBIN, pairs, sizes.tolist(), 1)[:, 0]
            short = (times < self._transfer_us / 2) & (sizes < self._most_bytes)
            if not short.any():
                self._first_bytes = max(_FIRST_BYTES, _FIRST_SHARE * float(np.median(sizes)))
                return (sizes / times * 1e6).tolist()
            growth = np.where(short, np.clip(self._transfer_us / times, *_GROWTH), 1.0)
            sizes = np.minimum(sizes * growth, self._most_bytes)


def by_host(rates: Mapping[Pair, float], site: Site) -> np.ndarray:
    """Return the rates between hosts' first ranks, (hosts, hosts); nan where there is none."""
    first = [site.rank(host) for host in range(len(site.hosts))]
    return np.array([[rates.get((a, b), np.nan) for b in first] for a in first])


def filled(bandwidth: np.ndarray) -> np.ndarray:
    """Return the matrix without gaps (nan); the diagonal is 1.

    A pair without a rate takes that of its other direction; else the geometric mean of its two
    hosts' median rates with others.
    """
    both = np.where(np.isnan(bandwidth), bandwidth.T, bandwidth)
    gaps = np.isnan(both)
    np.fill_diagonal(gaps, False)
    if gaps.any():
        finite_rows = [row[~np.isnan(row)] for row in both]
        typical = np.array([np.median(row) if len(row) else np.nan for row in finite_rows])
        typical[np.isnan(typical)] = np.nanmedian(typical) if len(typical) else 1.0
        both[gaps] = np.sqrt(np.outer(typical, typical))[gaps]
    np.fill_diagonal(both, 1.0)
    return both


def rounds(hosts: int) -> tuple[tuple[Pair, ...], ...]:
    """Return a 1-factorization of the complete graph: disjoint pairs, each unordered pair once.

    By the rotation of the standard round-robin schedule (one vertex fixed, the others rotate):
    n - 1 rounds for even n and n for odd n (one host idle in each).
    """
    if hosts < 2:
        return ()
    order: list[int | None] = list(range(hosts))
    if hosts % 2:
        order.append(None)
    result: list[tuple[Pair, ...]] = []
    for _ in range(len(order) - 1):
        half = len(order) // 2
        pairs = zip(order[:half], reversed(order[half:]), strict=True)
        result.append(
            tuple((min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None)
        )
        order = [order[0], order[-1], *order[1:-1]]
    return tuple(result)


def packed(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Return `pairs` in rounds of disjoint ones: greedy edge colouring, first fit."""
    plan: list[list[Pair]] = []
    busy: list[set[int]] = []
    for pair in pairs:
        free = (index for index, members in enumerate(busy) if members.isdisjoint(pair))
        index = next(free, len(plan))
        if index == len(plan):
            plan.append([])
            busy.append(set())
        plan[index].append(pair)
        busy[index].update(pair)
    return plan


def local_rounds(members: tuple[tuple[int, ...], ...]) -> tuple[tuple[Pair, ...], ...]:
    """Return rounds that hold every pair of one host's ranks once, one pair a host a round.

    `members[host]` are the ranks on that host; hosts run in parallel.
    """
    queues = [[(a, b) for i, a in enumerate(ranks) for b in ranks[i + 1 :]] for ranks in members]
    longest = max((len(queue) for queue in queues), default=0)
    return tuple(
        tuple(queue[index] for queue in queues if index < len(queue)) for index in range(longest)
    )
