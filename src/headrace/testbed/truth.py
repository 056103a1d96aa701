"""True topology of a testbed, at the payload rates of TCP: the reference for measurements."""

from collections.abc import Sequence
from dataclasses import replace

from headrace.testbed.machines import Host, Rack
from headrace.topology.presets.racks import rack_network
from headrace.topology.topology import Topology


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
    made = rack_network(
        name=name,
        hosts=[host.name for host in hosts],
        addresses=[host.address for host in hosts],
        rank_host=order,
        rack_of=[host.rack for host in hosts],
        nic_rates=[host.bytes_per_s * payload_share for host in hosts],
        uplink_rates=[rack.bytes_per_s * payload_share for rack in racks],
        alpha_us=alpha_us,
        nic_name=lambda rank, way: f"{hosts[order[rank]].name}-{way}",
        uplink_name=lambda rack, way: f"{racks[rack].name}-uplink-{way}",
    )
    # ways out first, as in earlier files
    shared = sorted(made.shared, key=lambda capacity: capacity.name.endswith("-in"))
    return replace(made, shared=tuple(shared))
