"""Racks of hosts behind uplinks: the networks of the testbed."""

from collections.abc import Callable, Sequence

import numpy as np

from headrace.errors import TopologyError
from headrace.topology.ports import by_direction
from headrace.topology.presets.boxes import MAX_LINKS
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

    Raises
    ------
    TopologyError : a rack has no host, there are too many, or `rank_order` is no order of them.
    """
    _check_hosts(hosts_per_rack)
    hosts = [(rack, i) for rack, count in enumerate(hosts_per_rack) for i in range(count)]
    order = rank_order or tuple(range(len(hosts)))
    _check_order(order, len(hosts))
    return rack_network(
        name=f"racks-{'+'.join(map(str, hosts_per_rack))}",
        hosts=[f"rack{rack}-host{i}" for rack, i in hosts],
        rank_host=order,
        rack_of=[rack for rack, _ in hosts],
        nic_rates=[host_bytes_per_s] * len(hosts),
        uplink_rates=[uplink_bytes_per_s] * len(hosts_per_rack),
        alpha_us=alpha_us,
        nic_name=lambda rank, direction: f"nic-{direction}-{rank}",
        uplink_name=lambda rack, direction: f"uplink-{direction}-{rack}",
    )


def _check_hosts(hosts_per_rack: tuple[int, ...]) -> None:
    if min(hosts_per_rack, default=0) < 1:
        raise TopologyError(f"hosts_per_rack is {hosts_per_rack}, needs racks of 1 host or more")
    ranks = sum(hosts_per_rack)
    if ranks * (ranks - 1) > MAX_LINKS:
        raise TopologyError(
            f"hosts_per_rack is {hosts_per_rack}: {ranks} ranks have {ranks * (ranks - 1)} links, "
            f"needs at most {MAX_LINKS}"
        )


def _check_order(order: tuple[int, ...], hosts: int) -> None:
    if len(set(order)) < len(order) or not set(order) <= set(range(hosts)):
        raise TopologyError(
            f"rank_order is {order}, needs hosts of 0 to {hosts - 1}, each at most once"
        )


def rack_network(
    *,
    name: str,
    hosts: Sequence[str],
    rank_host: Sequence[int],
    rack_of: Sequence[int],
    nic_rates: Sequence[float],
    uplink_rates: Sequence[float],
    alpha_us: float,
    nic_name: Callable[[int, str], str],
    uplink_name: Callable[[int, str], str],
    addresses: Sequence[str] = (),
) -> Topology:
    """Return racks of hosts, one rank a host, with a link between any two.

    Links cost the slowest of the NICs and uplinks they cross, which are shared capacities each way.

    Parameters
    ----------
    rack_of, nic_rates : rack and bytes/s of every host.
    uplink_rates : bytes/s of every rack.
    nic_name, uplink_name : of a rank's NIC and of a rack's uplink, given "out" or "in".
    """
    n = len(rank_host)
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    rack = np.array([rack_of[host] for host in rank_host], np.int64)
    nics = [beta_from_bytes_per_s(nic_rates[host]) for host in rank_host]
    uplinks = [beta_from_bytes_per_s(rate) for rate in uplink_rates]

    def beta(s: int, d: int) -> float:
        far = (uplinks[rack[s]], uplinks[rack[d]]) if rack[s] != rack[d] else ()
        return max(nics[s], nics[d], *far)

    across = np.flatnonzero(rack[src] != rack[dst])
    leaving, entering = rack[src[across]], rack[dst[across]]
    return Topology(
        name=name,
        hosts=tuple(hosts),
        addresses=tuple(addresses),
        rank_host=tuple(rank_host),
        links=tuple(
            Link(src=s, dst=d, alpha_us=alpha_us, beta_us_per_mb=beta(s, d))
            for s, d in zip(src.tolist(), dst.tolist(), strict=True)
        ),
        shared=(
            *(
                SharedCapacity(
                    name=nic_name(rank, direction), links=mine, beta_us_per_mb=nics[rank]
                )
                for rank, direction, mine in by_direction(src, dst, n)
            ),
            *(
                SharedCapacity(
                    name=uplink_name(r, direction), links=mine, beta_us_per_mb=uplinks[r]
                )
                for r, direction, mine in by_direction(leaving, entering, len(uplinks), across)
            ),
        ),
    )
