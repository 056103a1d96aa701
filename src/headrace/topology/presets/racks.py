"""Racks of hosts behind uplinks: the networks of the testbed."""

from headrace.topology.topology import Link, SharedCapacity, Topology, beta_from_bytes_per_s


def uniform(ranks: int, *, alpha_us: float = 50.0, bytes_per_s: float = 1e9) -> Topology:
    """Every rank on its own host, a link between any two, one NIC per host and direction."""
    return racks(
        (ranks,), host_bytes_per_s=bytes_per_s, uplink_bytes_per_s=bytes_per_s, alpha_us=alpha_us
    )


def racks(
    hosts_per_rack: tuple[int, ...],
    *,
    host_bytes_per_s: float,
    uplink_bytes_per_s: float,
    alpha_us: float = 50.0,
    rank_order: tuple[int, ...] | None = None,
) -> Topology:
    """Racks of hosts behind one uplink each, one rank a host, full duplex.

    `rank_order[rank]` is the host of that rank (default: in order). Shared capacities: every
    host's NIC and every rack's uplink, both ways. Nothing multicasts; all traffic uses the NICs.
    """
    hosts = [(rack, i) for rack, count in enumerate(hosts_per_rack) for i in range(count)]
    n = len(hosts)
    order = rank_order or tuple(range(n))
    rack_of = [hosts[order[rank]][0] for rank in range(n)]
    nic = beta_from_bytes_per_s(host_bytes_per_s)
    uplink = beta_from_bytes_per_s(uplink_bytes_per_s)
    pairs = [(s, d) for s in range(n) for d in range(n) if s != d]
    links = tuple(
        Link(
            src=s,
            dst=d,
            alpha_us=alpha_us,
            beta_us_per_mb=nic if rack_of[s] == rack_of[d] else max(nic, uplink),
        )
        for s, d in pairs
    )
    shared: list[SharedCapacity] = []
    if n > 1:
        for rank in range(n):
            for name, end in (("out", 0), ("in", 1)):
                mine = tuple(i for i, pair in enumerate(pairs) if pair[end] == rank)
                shared.append(
                    SharedCapacity(name=f"nic-{name}-{rank}", links=mine, beta_us_per_mb=nic)
                )
    for rack in range(len(hosts_per_rack)) if len(hosts_per_rack) > 1 else ():
        for name, end in (("out", 0), ("in", 1)):
            mine = tuple(
                i
                for i, pair in enumerate(pairs)
                if rack_of[pair[end]] == rack and rack_of[pair[1 - end]] != rack
            )
            if mine:
                shared.append(
                    SharedCapacity(name=f"uplink-{name}-{rack}", links=mine, beta_us_per_mb=uplink)
                )
    return Topology(
        name=f"racks-{'+'.join(map(str, hosts_per_rack))}",
        hosts=tuple(f"rack{rack}-host{i}" for rack, i in hosts),
        rank_host=order,
        links=links,
        shared=tuple(shared),
    )
