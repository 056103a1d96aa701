"""True topology of a testbed, at the payload rates of TCP: the reference for measurements."""

from collections.abc import Callable, Sequence

from headrace.testbed.machines import Host, Rack
from headrace.topology.topology import Link, SharedCapacity, Topology, beta_from_bytes_per_s


def true_topology(
    name: str,
    racks: Sequence[Rack],
    hosts: Sequence[Host],
    order: Sequence[int],
    *,
    payload_share: float,
    alpha_us: float,
) -> Topology:
    """Return the topology of a testbed with rank r on host `order[r]`.

    Links cost the slowest of the host and uplink rates they cross; every host's two directions
    and every uplink's two directions are shared capacities. Latency depends on the machine and is
    not part of a spec: every link gets `alpha_us`. `payload_share` of every rate carries payload.
    """
    rank_hosts = [hosts[index] for index in order]

    def beta(bytes_per_s: float) -> float:
        return beta_from_bytes_per_s(bytes_per_s * payload_share)

    n = len(rank_hosts)
    pairs = [(s, d) for s in range(n) for d in range(n) if s != d]
    links: list[Link] = []
    for s, d in pairs:
        rates = [rank_hosts[s].bytes_per_s, rank_hosts[d].bytes_per_s]
        if rank_hosts[s].rack != rank_hosts[d].rack:
            rates += [racks[rank_hosts[s].rack].bytes_per_s, racks[rank_hosts[d].rack].bytes_per_s]
        links.append(Link(src=s, dst=d, alpha_us=alpha_us, beta_us_per_mb=beta(min(rates))))
    return Topology(
        name=name,
        hosts=tuple(host.name for host in hosts),
        addresses=tuple(host.address for host in hosts),
        rank_host=tuple(order),
        links=tuple(links),
        shared=tuple(_shared(racks, rank_hosts, pairs, beta)),
    )


def _shared(
    racks: Sequence[Rack],
    rank_hosts: Sequence[Host],
    pairs: Sequence[tuple[int, int]],
    beta: Callable[[float], float],
) -> list[SharedCapacity]:
    """Return every host's and uplink's two directions; `pairs` are the ends of links."""
    shared: list[SharedCapacity] = []
    for end, way in ((0, "out"), (1, "in")):
        for rank, host in enumerate(rank_hosts):
            uses = tuple(i for i, pair in enumerate(pairs) if pair[end] == rank)
            if uses:
                shared.append(
                    SharedCapacity(
                        name=f"{host.name}-{way}",
                        links=uses,
                        beta_us_per_mb=beta(host.bytes_per_s),
                    )
                )
        for index, rack in enumerate(racks):
            uses = tuple(
                i
                for i, pair in enumerate(pairs)
                if rank_hosts[pair[end]].rack == index and rank_hosts[pair[1 - end]].rack != index
            )
            if uses:
                shared.append(
                    SharedCapacity(
                        name=f"{rack.name}-uplink-{way}",
                        links=uses,
                        beta_us_per_mb=beta(rack.bytes_per_s),
                    )
                )
    return shared
