"""Who is near whom: rounds of disjoint pairs, all bandwidths in O(N) rounds (PLink 4.1.1)."""

from collections.abc import Sequence

import numpy as np

from headrace.collectives.measure.effort import Effort, Progress
from headrace.collectives.measure.probe import ACK_BYTES, Flow, Manner
from headrace.collectives.measure.recorder import BULK_CHUNKS, Recorder, Site, Stage

Pair = tuple[int, int]

_FIRST_BYTES = 65_536
_GROWTH = (2.0, 8.0)


def tournament(recorder: Recorder, site: Site, effort: Effort, progress: Progress) -> np.ndarray:
    """Return (hosts, hosts) bytes per second from everyone to everyone.

    Each pair meets once, first one way and then the other; no host is in two probes at once.
    Disjoint pairs can meet on an uplink: the bandwidths tell near from far, not what links cost.
    """
    hosts = len(site.hosts)
    bandwidth = np.ones((hosts, hosts))
    plan = rounds(hosts) if hosts > 1 else ()
    for index, meeting in enumerate(plan):
        progress(f"tournament, round {index + 1} of {len(plan)}", index / len(plan))
        for pairs in (meeting, tuple((b, a) for a, b in meeting)):
            ranks = [(site.rank(a), site.rank(b)) for a, b in pairs]
            echoes = [Flow(a, b, ACK_BYTES) for a, b in ranks]
            recorder.probe(
                Stage.TOURNAMENT, Manner.ONE_AFTER_ANOTHER, BULK_CHUNKS, echoes, effort.repeats
            )
            for (a, b), rate in zip(pairs, _rates(recorder, ranks, effort), strict=True):
                bandwidth[a, b] = rate
    return bandwidth


def rounds(players: int) -> tuple[tuple[Pair, ...], ...]:
    """Return rounds in which every unordered pair of `players` meets exactly once.

    No player appears twice in a round. The circle method: one player stays, the others turn, so
    there are n - 1 rounds for even n and n for odd n (one player sits out in each).
    """
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


def local_rounds(members: tuple[tuple[int, ...], ...]) -> tuple[tuple[Pair, ...], ...]:
    """Return rounds in which every pair of one host's ranks meets once, one pair a host a round.

    `members[host]` are the ranks on that host; hosts take part side by side.
    """
    queues = [[(a, b) for i, a in enumerate(ranks) for b in ranks[i + 1 :]] for ranks in members]
    longest = max((len(queue) for queue in queues), default=0)
    return tuple(
        tuple(queue[index] for queue in queues if index < len(queue)) for index in range(longest)
    )


def _rates(recorder: Recorder, pairs: Sequence[Pair], effort: Effort) -> list[float]:
    """Bytes per second between disjoint pairs of ranks, from transfers of growing size.

    The growth also takes every connection past TCP's slow start.
    """
    sizes = np.full(len(pairs), float(_FIRST_BYTES))
    while True:
        times = recorder.bulk(Stage.TOURNAMENT, pairs, sizes.tolist(), 1)[:, 0]
        short = (times < effort.tournament_us / 2) & (sizes < effort.most_bytes)
        if not short.any():
            return (sizes / times * 1e6).tolist()
        growth = np.where(short, np.clip(effort.tournament_us / times, *_GROWTH), 1.0)
        sizes = np.minimum(sizes * growth, effort.most_bytes)
