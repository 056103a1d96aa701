"""Who is near whom: rounds of disjoint pairs, all bandwidths in O(N) rounds (PLink 4.1.1)."""

from collections.abc import Iterable, Sequence

import numpy as np

from headrace.collectives.measure.effort import Budget, ProbeEffort, ProgressCallback
from headrace.collectives.measure.recorder import Recorder, Series, Site

Pair = tuple[int, int]

_FIRST_BYTES = 65_536.0
_GROWTH = (2.0, 8.0)
_HEAD_START = 0.25  # of what earlier pairs needed
_LEAST_US = 2_000.0
_LEAST_ECHOES = 6
_FIRST_MEETINGS = 2  # slower than the rest: programs and memory are new


class RoundRobin:
    """Meetings of ranks, by pair of ranks: what was found outlives the loss of a host.

    Each pair meets once, first one way and then the other; no host is in two probes at once.
    Disjoint pairs can meet on an uplink: the bandwidths tell near from far, not what links cost.

    Attributes
    ----------
    rates : bytes per second from rank to rank.
    echoes : round trips in us, as timed by the first of the two.
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

    def play(self, site: Site, until: float, progress: ProgressCallback) -> np.ndarray:
        """Return (hosts, hosts) bytes per second from everyone to everyone.

        `until` is the share of the budget after which it ends: pairs that have not met by then
        take what their hosts have with others.
        """
        plan = self._to_play(site)
        for index, meeting in enumerate(plan):
            left_s = self._budget.left_s(until)
            if index and left_s <= 0:
                missed = len(plan) - index
                self._budget.cut("tournament", f"{missed} of {len(plan)} meetings left out")
                break
            progress(f"tournament, round {index + 1} of {len(plan)}", index / len(plan))
            started = self._budget.now
            self._meet(meeting)
            if index >= _FIRST_MEETINGS:
                self._hurry(len(plan) - index - 1, left_s, self._budget.now - started)
        return self._matrix(site)

    def _to_play(self, site: Site) -> list[list[Pair]]:
        """The meetings, of ranks, that have not been yet."""
        plan: list[list[Pair]] = []
        for meeting in rounds(len(site.hosts)):
            for pairs in (meeting, tuple((b, a) for a, b in meeting)):
                plan.append([(site.rank(a), site.rank(b)) for a, b in pairs])
        if not self.rates:
            return plan
        return packed([pair for meeting in plan for pair in meeting if pair not in self.rates])

    def _meet(self, pairs: Sequence[Pair]) -> None:
        echoes = self._recorder.echo(pairs, self._echoes)
        rates = self._measure(pairs)
        for pair, row, rate in zip(pairs, echoes, rates, strict=True):
            self.echoes[pair], self.rates[pair] = row, rate

    def _hurry(self, meetings: int, left_s: float, took_s: float) -> None:
        """Shorten what is left if it would not fit."""
        if meetings * took_s <= max(left_s - took_s, 0.0) or self._transfer_us <= _LEAST_US:
            return
        self._transfer_us = max(self._transfer_us / 2, _LEAST_US)
        self._echoes = max(self._echoes // 2, _LEAST_ECHOES)
        self._budget.cut("tournament", f"transfers of {self._transfer_us / 1e3:.3g} ms")

    def _measure(self, pairs: Sequence[Pair]) -> list[float]:
        """Bytes per second between disjoint pairs of ranks, from transfers of growing size.

        The growth also takes every connection past TCP's slow start.
        """
        sizes = np.full(len(pairs), self._first_bytes)
        while True:
            times = self._recorder.bulk(Series.ROUND_ROBIN, pairs, sizes.tolist(), 1)[:, 0]
            short = (times < self._transfer_us / 2) & (sizes < self._most_bytes)
            if not short.any():
                self._first_bytes = max(_FIRST_BYTES, _HEAD_START * float(np.median(sizes)))
                return (sizes / times * 1e6).tolist()
            growth = np.where(short, np.clip(self._transfer_us / times, *_GROWTH), 1.0)
            sizes = np.minimum(sizes * growth, self._most_bytes)

    def _matrix(self, site: Site) -> np.ndarray:
        hosts = len(site.hosts)
        bandwidth = np.full((hosts, hosts), np.nan)
        for a in range(hosts):
            for b in range(hosts):
                bandwidth[a, b] = self.rates.get((site.rank(a), site.rank(b)), np.nan)
        return filled(bandwidth)


def filled(bandwidth: np.ndarray) -> np.ndarray:
    """Return the matrix without gaps (nan); the diagonal is 1.

    A pair that did not meet has what its other direction has; else the geometric mean of what its
    two hosts have with others (medians).
    """
    both = np.where(np.isnan(bandwidth), bandwidth.T, bandwidth)
    gaps = np.isnan(both)
    np.fill_diagonal(gaps, False)
    if gaps.any():
        known = [row[~np.isnan(row)] for row in both]
        typical = np.array([np.median(row) if len(row) else np.nan for row in known])
        typical[np.isnan(typical)] = np.nanmedian(typical) if len(typical) else 1.0
        both[gaps] = np.sqrt(np.outer(typical, typical))[gaps]
    np.fill_diagonal(both, 1.0)
    return both


def rounds(players: int) -> tuple[tuple[Pair, ...], ...]:
    """Return rounds in which every unordered pair of `players` meets exactly once.

    No player appears twice in a round. The circle method: one player stays, the others turn, so
    there are n - 1 rounds for even n and n for odd n (one player sits out in each).
    """
    if players < 2:
        return ()
    seats: list[int | None] = list(range(players))
    if players % 2:
        seats.append(None)
    result: list[tuple[Pair, ...]] = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        result.append(
            tuple((min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None)
        )
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(result)


def packed(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Return `pairs` in rounds in which nobody appears twice, as few as come easily."""
    plan: list[list[Pair]] = []
    seated: list[set[int]] = []
    for pair in pairs:
        free = (index for index, players in enumerate(seated) if players.isdisjoint(pair))
        index = next(free, len(plan))
        if index == len(plan):
            plan.append([])
            seated.append(set())
        plan[index].append(pair)
        seated[index].update(pair)
    return plan


def local_rounds(members: tuple[tuple[int, ...], ...]) -> tuple[tuple[Pair, ...], ...]:
    """Return rounds in which every pair of one host's ranks meets once, one pair a host a round.

    `members[host]` are the ranks on that host; hosts take part side by side.
    """
    queues = [[(a, b) for i, a in enumerate(ranks) for b in ranks[i + 1 :]] for ranks in members]
    longest = max((len(queue) for queue in queues), default=0)
    return tuple(
        tuple(queue[index] for queue in queues if index < len(queue)) for index in range(longest)
    )
