"""Finetune: masters moved step by step away from the slowest ranks (PLink 4.3.2).

Every rank has a blame, gamma * t(i) / mean(t) + beta * (l(i) - min(l)) / (max(l) - min(l)): t(i) is
the time it needs, its largest round-trip time and D(i, j) / BW(i, j) summed over its peers; l(i) is
what it sends, D(i, j) summed; D(i, j) are the bytes scheduled from i to j. (The paper writes DW for
BW, and B for blame as well as for bandwidth.) If the most blamed rank's is more than epsilon times
another's, a global master moves from the one to the other, or else a local master, which stays in
its group. If it is the same rank again, twice as many do.

Left open by the paper, and decided here:

- Where 0 would be divided by 0 (all send the same, none sends), that part of the blame is 0.
- Blame for a slow pair: that of the end that is slow with all peers. For the other end the pair
  counts as fast as it would be with an end like itself; as printed, t blames both.
- Source and target of a move: of the pairs that may, the most blamed and the least. A rank without
  masters cannot be the source, so the next one is. Moves double if the source or the target is the
  same again: of several busy ranks and an idle one, the idle one repeats.
- No move is made that would leave the two worse off by the same account of time and bytes; so the
  doubling does not overshoot.
- Stop rule: no move is left, or steps stop getting faster. The best masters are kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from headrace.collectives.adapt.act.bandwidth import checked_bandwidth
from headrace.collectives.plan.generators.templates.two_level.masters import Masters
from headrace.collectives.plan.locality import RankGroups

GAMMA = 1.0
"""Weight of time in the blame: the unit."""

BETA = 0.05
"""Weight of bytes. Time counts most: a rank 5% slower that sends least is blamed as much as the
one that sends most. Enough to even out what ranks of the same speed send, too little to hold back a
fast rank that sends more."""

IMBALANCE = 1.05
"""Largest over least bytes sent that are as good as even (PLink 5.6)."""

EPSILON = IMBALANCE + BETA / GAMMA
"""Blames within this factor count as equal. Among ranks of one speed they are exactly when bytes
are within `IMBALANCE`: t differs by that factor, and the most blamed has all of beta besides."""

FIRST = 1 / 64
"""Fraction of all chunks moved by a first step (the paper: one master). It has a measurable effect,
where one chunk among thousands would be noise; doubled, it is half of all chunks in six steps."""

GAIN = 0.01
"""Least relative fall of a training step's time that counts as better: less is noise."""

LOSS = 0.05
"""A relative rise by this reverts a step; times vary by less while nothing changes."""

MAX_STALE = 3
"""Most steps in a row without gain. With doubling they have moved a tenth of all chunks."""

_NOISE = 1e-9  # of sums of floats
_MOST_TRIED = 8  # targets for a source: if the least blamed ones do not help, no other will


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Account:
    """Times and bytes of all ranks, and the scale of their blame; see the module."""

    latency_us: np.ndarray
    pace_us: np.ndarray  # (n, n) us per byte
    sent: np.ndarray
    mean_us: float
    least: float
    spread: float

    @classmethod
    def of(cls, sent: np.ndarray, bandwidth: np.ndarray, rtt_us: np.ndarray) -> "Account":
        """Return the account of bytes sent, bytes/s and us, each (n, n) from i to j."""
        used = np.where(np.isfinite(rtt_us) & (sent > 0), rtt_us, 0.0)
        best = np.minimum(bandwidth.max(axis=1), bandwidth.max(axis=0))  # of every rank, with any
        fair = bandwidth * np.maximum(best[:, None] / best[None, :], 1.0)
        pace = np.divide(1e6, fair, out=np.zeros_like(fair), where=fair > 0)
        bytes_ = sent.sum(axis=1)
        loads = cls(
            latency_us=used.max(axis=1, initial=0.0),
            pace_us=pace,
            sent=sent,
            mean_us=1.0,
            least=float(bytes_.min()),
            spread=float(bytes_.max() - bytes_.min()),
        )
        return replace(loads, mean_us=float(loads.times_us.mean()))

    @property
    def times_us(self) -> np.ndarray:
        """(n,) time that each rank needs."""
        return self.latency_us + (self.sent * self.pace_us).sum(axis=1)

    @property
    def blame(self) -> np.ndarray:
        """(n,) blames."""
        time = self.times_us / self.mean_us if self.mean_us > 0 else np.zeros(len(self.sent))
        bytes_ = self.sent.sum(axis=1) - self.least
        even = bytes_ / self.spread if self.spread > 0 else np.zeros(len(self.sent))
        return GAMMA * time + BETA * even


class Finetune:
    """One run of Finetune, from a change of the network until its stop rule."""

    def __init__(self) -> None:
        self._best: tuple[float, Masters] | None = None
        self._stale = 0
        self._pair: tuple[int, int] | None = None
        self._doublings = 0
        self._done = False

    def step(
        self,
        masters: Masters,
        sent_bytes: np.ndarray,
        bandwidth: np.ndarray,
        rtt_us: np.ndarray,
        *,
        step_us: float | None = None,
    ) -> Masters | None:
        """Return the next masters, or None to keep these for good.

        Parameters
        ----------
        masters : in force while the rest was measured.
        sent_bytes : (n, n) from i to j in one training step (a window's, over its steps).
        bandwidth : (n, n) bytes/s, as used or else from the profile; diagonal ignored.
        rtt_us : (n, n); nan where unknown.
        step_us : time of a training step, by which masters are judged. None: they are judged by the
            slowest rank's t, which is less precise.

        Raises
        ------
        InputError : if a pair's bandwidth is unknown.
        """
        rates = checked_bandwidth(bandwidth, masters.ranks)
        sent = np.nan_to_num(sent_bytes.astype(np.float64))
        np.fill_diagonal(sent, 0.0)
        if self._done or masters.ranks == 1 or not sent.any():
            return None
        account = Account.of(sent, rates, rtt_us)
        time_us = float(account.times_us.max()) if step_us is None else step_us
        if self._best is None or time_us < self._best[0] * (1 - GAIN):
            self._best, self._stale = (time_us, masters), 0
        else:
            self._stale += 1
        self._done = self._stale >= MAX_STALE
        best_us, best = self._best
        worse = GAIN if self._done else LOSS
        if time_us > best_us * (1 + worse) and not _same(masters, best):
            self._pair = None
            return best
        moved = None if self._done else self._moved(masters, account)
        self._done = moved is None
        return moved

    def _moved(self, masters: Masters, account: Account) -> Masters | None:
        """Return `masters` after one step's moves; None if there is none."""
        moves = _Moves(masters, account)
        pair = moves.make(None)
        if pair is None:
            return None
        again = self._pair is not None and any(
            a == b for a, b in zip(pair, self._pair, strict=True)
        )
        self._doublings = self._doublings + 1 if again else 0
        self._pair = pair
        most = max(1, round(masters.chunks * FIRST)) << min(self._doublings, 16)
        moved = 1
        while moved < most and moves.make(pair) is not None:
            moved += 1
        return moves.masters


class _Moves:
    """Masters being moved, with the account of bytes and times kept up to date."""

    def __init__(self, masters: Masters, account: Account) -> None:
        self._groups, self._group_of = masters.groups, masters.group_of
        self._local, self._top = masters.local_master.copy(), masters.global_master.copy()
        self._account = account
        # An allreduce sends every chunk 2 (n - 1) times, whichever its masters are.
        sends = 2 * (masters.ranks - 1) * masters.chunks
        self._chunk_bytes = float(account.sent.sum()) / sends

    @property
    def masters(self) -> Masters:
        """The masters after the moves so far."""
        return Masters(groups=self._groups, local_master=self._local, global_master=self._top)

    def make(self, like: tuple[int, int] | None) -> tuple[int, int] | None:
        """Move one master; return (source, target), None if none can be moved.

        Parameters
        ----------
        like : a move before; this one must share its source or its target.
        """
        blamed = self._account.blame
        for rank in np.argsort(-blamed, kind="stable").tolist():
            targets = [
                rival
                for rival in np.argsort(blamed, kind="stable").tolist()
                if blamed[rank] > EPSILON * blamed[rival]
                and (like is None or rank == like[0] or rival == like[1])
            ]
            for options in (self._global_moves(rank, targets), self._local_moves(rank, targets)):
                for chunk, target in islice(options, _MOST_TRIED):
                    if self._try(rank, chunk, target, blamed):
                        return rank, target
        return None

    def _global_moves(self, source: int, targets: list[int]) -> Iterator[tuple[int, int]]:
        """Yield (chunk, target) for the source's global masters, the least blamed target first."""
        mine = self._top == source
        for target in targets if mine.any() else []:
            local = self._local[:, self._group_of[target]] == target
            # In another group rather a chunk that the target is local master of already.
            among = mine & local if (mine & local).any() else mine
            yield self._apart(among, self._top == target), target

    def _local_moves(self, source: int, targets: list[int]) -> Iterator[tuple[int, int]]:
        """Yield (chunk, target) for chunks whose global master is elsewhere."""
        column = self._local[:, self._group_of[source]]
        mine = (column == source) & (self._top != source)
        for target in targets if mine.any() else []:
            if self._group_of[target] == self._group_of[source]:
                yield self._apart(mine, column == target), target

    def _apart(self, among: np.ndarray, taken: np.ndarray) -> int:
        """Return the chunk farthest from those taken: a master's chunks stay evenly spread."""
        chunks, have = np.flatnonzero(among), np.flatnonzero(taken)
        if not len(have):
            return int(chunks[0])
        away = np.abs(chunks[:, None] - have[None, :]).min(axis=1)
        return int(chunks[np.argmax(away)])

    def _try(self, source: int, chunk: int, target: int, blamed: np.ndarray) -> bool:
        """Move the chunk's master, unless a rank's blame would reach that of `source` now."""
        local, top = self._local[chunk].copy(), int(self._top[chunk])
        before = _edges(self._groups, local.tolist(), top)
        self._local[chunk, self._group_of[target]] = target
        if top == source:
            self._top[chunk] = target
        after = _edges(self._groups, self._local[chunk].tolist(), int(self._top[chunk]))
        sent = self._account.sent.copy()
        np.subtract.at(sent, before, self._chunk_bytes)
        np.add.at(sent, after, self._chunk_bytes)
        account = replace(self._account, sent=np.maximum(sent, 0.0))
        now = account.blame
        risen = now[now > blamed + _NOISE]
        if risen.max(initial=0.0) < blamed[source] and now[source] < blamed[source] - _NOISE:
            self._account = account
            return True
        self._local[chunk], self._top[chunk] = local, top
        return False


def _edges(groups: RankGroups, local: list[int], top: int) -> tuple[list[int], list[int]]:
    """Return the sources and destinations of a chunk's sends, up and down."""
    up = [
        (rank, master)
        for group, master in zip(groups, local, strict=True)
        for rank in group
        if rank != master
    ]
    up += [(master, top) for master in local if master != top]
    low, high = [a for a, _ in up], [b for _, b in up]
    return low + high, high + low


def _same(masters: Masters, candidate: Masters) -> bool:
    return np.array_equal(masters.local_master, candidate.local_master) and np.array_equal(
        masters.global_master, candidate.global_master
    )
