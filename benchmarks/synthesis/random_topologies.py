"""Random irregular topologies: strongly connected, of 8 to 32 ranks, equal for equal seeds.

Every one grows from a directed cycle by ears (paths that leave the ranks so far and come back), so
that it is strongly connected and as sparse as that can be; then links are added. One in three has
no hosts in common, one has hosts of unequal sizes with shared uplinks, one has switches with ports.
"""

from collections.abc import Callable

import numpy as np

from headrace.topology import Link, SharedCapacity, Switch, Topology

__all__ = ["SEEDS", "random_topology"]

SEEDS = range(60)
"""Of the benchmark's topologies."""

_RANKS = (8, 32)
_ALPHA_US = (0.5, 30.0)
_BETA_US_PER_MB = (10.0, 1000.0)

_Pairs = dict[tuple[int, int], None]
"""Ordered pairs of ranks; a dictionary, as it keeps the order in which they came."""


def random_topology(seed: int) -> Topology:
    """Return the topology of `seed`; its kind is that of ``seed % 3``."""
    random = np.random.default_rng([14, seed])
    ranks = int(random.integers(_RANKS[0], _RANKS[1] + 1))
    kinds: tuple[Callable[[np.random.Generator, int, int], Topology], ...]
    kinds = (_plain, _in_hosts, _switched)
    return kinds[seed % len(kinds)](random, ranks, seed)


def _plain(random: np.random.Generator, ranks: int, seed: int) -> Topology:
    pairs = _connected(random, ranks)
    _add_pairs(random, ranks, pairs, float(random.choice((0.0, 0.5, 2.0, 6.0))))
    return Topology(
        name=f"random-plain-{seed}",
        hosts=tuple(f"h{rank}" for rank in range(ranks)),
        rank_host=tuple(range(ranks)),
        links=_links(random, pairs),
    )


def _in_hosts(random: np.random.Generator, ranks: int, seed: int) -> Topology:
    """Hosts of unequal sizes, not all strongly connected inside; most share uplinks."""
    hosts = int(random.integers(2, max(3, ranks // 3) + 1))
    rank_host = np.sort(np.append(np.arange(hosts), random.integers(0, hosts, ranks - hosts)))
    pairs = _connected(random, ranks)
    _add_pairs(random, ranks, pairs, float(random.choice((0.0, 1.0, 3.0))))
    local = float(random.choice((0.0, 0.3, 1.0)))
    for src in range(ranks):
        for dst in range(ranks):
            if src != dst and rank_host[src] == rank_host[dst] and random.random() < local:
                pairs[src, dst] = None
    links = _links(random, pairs)
    shared: list[SharedCapacity] = []
    for host in range(hosts):
        for way in ("out", "in"):
            crossing = [
                at
                for at, link in enumerate(links)
                if rank_host[link.src] != rank_host[link.dst]
                and rank_host[link.src if way == "out" else link.dst] == host
            ]
            if len(crossing) > 1 and random.random() < 0.8:
                shared.append(
                    SharedCapacity(
                        name=f"h{host} {way}",
                        links=tuple(crossing),
                        beta_us_per_mb=_log_uniform(random, _BETA_US_PER_MB),
                    )
                )
    return Topology(
        name=f"random-hosts-{seed}",
        hosts=tuple(f"h{host}" for host in range(hosts)),
        rank_host=tuple(rank_host.tolist()),
        links=links,
        shared=tuple(shared),
    )


def _switched(random: np.random.Generator, ranks: int, seed: int) -> Topology:
    """Switches that join some ranks all to all through ports; direct links join the rest."""
    pairs = _connected(random, ranks)
    _add_pairs(random, ranks, pairs, float(random.choice((0.0, 1.0))))
    behind: list[list[int]] = []
    through: dict[tuple[int, int], int] = {}
    for switch in range(int(random.integers(1, 4))):
        size = int(random.integers(3, min(ranks, 12) + 1))
        behind.append(sorted(random.choice(ranks, size, replace=False).tolist()))
        for src in behind[-1]:
            for dst in behind[-1]:
                if src != dst and (src, dst) not in pairs:
                    through[src, dst] = switch
                    pairs[src, dst] = None
    links = _links(random, pairs)
    shared: list[SharedCapacity] = []
    switches: list[Switch] = []
    for switch, members in enumerate(behind):
        mine = [at for at, k in enumerate(links) if through.get((k.src, k.dst)) == switch]
        if not mine:
            continue
        switches.append(Switch(name=f"s{switch}", links=tuple(mine)))
        beta = _log_uniform(random, _BETA_US_PER_MB)
        for rank in members:
            for way in ("out", "in"):
                port = [
                    at for at in mine if (links[at].src if way == "out" else links[at].dst) == rank
                ]
                if port:
                    shared.append(
                        SharedCapacity(
                            name=f"s{switch} {rank} {way}", links=tuple(port), beta_us_per_mb=beta
                        )
                    )
    return Topology(
        name=f"random-switches-{seed}",
        hosts=tuple(f"h{rank}" for rank in range(ranks)),
        rank_host=tuple(range(ranks)),
        links=links,
        shared=tuple(shared),
        switches=tuple(switches),
    )


def _connected(random: np.random.Generator, ranks: int) -> _Pairs:
    """Return a cycle with ears that covers all ranks: strongly connected."""
    order = random.permutation(ranks).tolist()
    longest = int(random.choice((2, 4, ranks)))
    done = order[: max(2, min(longest, ranks))]
    pairs = dict.fromkeys(zip(done, [*done[1:], done[0]], strict=True))
    while len(done) < ranks:  # every turn adds at least one rank
        ear = order[len(done) : len(done) + int(random.integers(1, longest + 1))]
        begin, end = random.choice(done, 2).tolist()
        pairs |= dict.fromkeys(zip([begin, *ear], [*ear, end], strict=True))
        done += ear
    return pairs


def _add_pairs(random: np.random.Generator, ranks: int, pairs: _Pairs, per_rank: float) -> None:
    for _ in range(round(per_rank * ranks)):
        src, dst = random.choice(ranks, 2, replace=False).tolist()
        pairs[src, dst] = None


def _links(random: np.random.Generator, pairs: _Pairs) -> tuple[Link, ...]:
    return tuple(
        Link(
            src=src,
            dst=dst,
            alpha_us=_log_uniform(random, _ALPHA_US),
            beta_us_per_mb=_log_uniform(random, _BETA_US_PER_MB),
        )
        for src, dst in pairs
    )


def _log_uniform(random: np.random.Generator, limits: tuple[float, float]) -> float:
    return round(float(np.exp(random.uniform(*np.log(limits)))), 4)
