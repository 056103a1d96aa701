"""Which resources a link's bytes pass, and in what order."""

from headrace.collectives.plan.cost.resources import resource_routes
from headrace.topology import Link, SharedCapacity, Topology
from headrace.topology.presets import racks, uniform


def names(topology: Topology, used: list[int], link: int, **options: bool) -> list[str]:
    """The resources of `link` by name; links come first, then the shared capacities."""
    found, count = resource_routes(topology, used, **options)
    known = [f"link {index}" for index in sorted(used)] + [s.name for s in topology.shared]
    assert count == len(known)
    return [known[resource] for resource, _ in found[link]]


def test_a_link_without_shared_capacity_is_one_resource() -> None:
    topology = uniform(3)
    assert names(topology, [0], 0) == ["link 0"]


def test_two_links_of_one_nic_meet_there() -> None:
    topology = uniform(3)
    first, second = topology.link_index[0, 1], topology.link_index[0, 2]
    assert names(topology, [first, second], first) == ["nic-out-0"]
    assert names(topology, [first, second], first, keep_links=True) == [
        f"link {first}",
        "nic-out-0",
    ]


def test_bytes_leave_by_the_nic_cross_uplinks_and_arrive_by_the_nic() -> None:
    topology = racks((2, 2, 2), host_bytes_per_s=4e6, uplink_bytes_per_s=1e6)
    everything = list(range(len(topology.links)))
    across, inside = topology.link_index[0, 2], topology.link_index[0, 1]
    assert names(topology, everything, across) == [
        "nic-out-0",
        "uplink-out-0",
        "uplink-in-1",
        "nic-in-2",
    ]
    assert names(topology, everything, inside) == ["nic-out-0", "nic-in-1"]


def test_two_racks_have_one_uplink_each_way() -> None:
    topology = racks((2, 2), host_bytes_per_s=4e6, uplink_bytes_per_s=1e6)
    everything = list(range(len(topology.links)))
    across = topology.link_index[0, 2]
    assert names(topology, everything, across) == ["nic-out-0", "uplink-out-0", "nic-in-2"]


def test_a_slower_link_stays_before_what_it_shares() -> None:
    topology = Topology(
        name="slow",
        hosts=("a", "b", "c"),
        rank_host=(0, 1, 2),
        links=(
            Link(src=0, dst=1, alpha_us=0.0, beta_us_per_mb=100.0),
            Link(src=0, dst=2, alpha_us=0.0, beta_us_per_mb=10.0),
        ),
        shared=(SharedCapacity(name="nic", links=(0, 1), beta_us_per_mb=10.0),),
    )
    assert names(topology, [0, 1], 0) == ["link 0", "nic"]
    assert names(topology, [0, 1], 1) == ["nic"]
