import inspect
import math
from dataclasses import replace

import numpy as np
import pytest

from headrace.errors import TopologyError
from headrace.topology import Topology
from headrace.topology.automorphism import is_automorphism
from headrace.topology.presets import (
    PRESETS,
    dgx1,
    dgx2,
    dgx2_taccl_1mb,
    dgx_a100,
    dgx_h100,
    fat_tree,
    hub_and_spoke,
    mesh,
    mi250,
    ndv2,
    ndv2_taccl_1mb,
    ring,
    torus,
)
from headrace.topology.refinement import automorphism_generators
from headrace.topology.symmetry import offset_permutation, translations
from tests.topology.examples import EXAMPLES
from tests.waiting import no_hang

MACHINES = (
    "ndv2",
    "ndv2_taccl_1mb",
    "dgx1",
    "dgx2",
    "dgx2_taccl_1mb",
    "dgx_a100",
    "dgx_h100",
    "mi250",
)
EVERY = [(name, EXAMPLES.get(name, {})) for name in PRESETS] + [
    (name, {"nodes": nodes}) for name in MACHINES for nodes in (2, 3)
]


def costs(made: Topology, src: int, dst: int) -> tuple[float, float]:
    link = made.links[made.link_index[src, dst]]
    return link.alpha_us, link.beta_us_per_mb


def ends(made: Topology, name: str) -> set[tuple[int, int]]:
    (capacity,) = [s for s in made.shared if s.name == name]
    return {(made.links[i].src, made.links[i].dst) for i in capacity.links}


def group_order(made: Topology) -> int:
    return automorphism_generators(made)[1]


@pytest.mark.parametrize(("name", "arguments"), EVERY)
def test_every_preset_is_connected_two_way_and_survives_the_trip(
    name: str, arguments: dict[str, object]
) -> None:
    made = PRESETS[name](**arguments)
    assert Topology.from_head(made.to_head()) == made
    index = made.link_index
    assert all(
        (dst, src) in index and costs(made, src, dst) == costs(made, dst, src) for src, dst in index
    )
    reached, open_ = {0}, [0]
    while open_:
        at = open_.pop()
        for link in made.links:
            if link.src == at and link.dst not in reached:
                reached.add(link.dst)
                open_.append(link.dst)
    assert len(reached) == made.ranks
    assert len({s.name for s in made.shared}) == len(made.shared)
    assert all(s.links for s in (*made.shared, *made.switches))


@pytest.mark.parametrize("name", MACHINES)
def test_nodes_are_alike(name: str) -> None:
    made = PRESETS[name](nodes=3)
    assert len(made.hosts) == 3
    per_node = made.ranks // 3
    turn = offset_permutation(made.ranks, per_node, made.ranks)
    assert is_automorphism(made, turn, hosts=True) is None


@pytest.mark.parametrize("name", PRESETS)
def test_docstrings_and_facts_name_multicast_and_the_path_of_nic_traffic(name: str) -> None:
    preset = PRESETS[name]
    text = f"{inspect.getdoc(preset.make)} {preset.facts}"
    assert "multicast" in text.lower()
    assert "NIC" in text
    assert preset.make.__name__ == name
    assert "\n" not in preset.facts


def test_wrong_parameters_are_named() -> None:
    with pytest.raises(TopologyError, match="ring has no parameter 'nodes', needs some of: n,"):
        PRESETS["ring"](n=3, nodes=2)
    with pytest.raises(TopologyError, match="preset torus needs parameter 'shape'"):
        PRESETS["torus"]()
    with pytest.raises(TopologyError, match="nodes is 0, needs at least 1"):
        ndv2(0)
    with pytest.raises(TopologyError, match="inter is 'some', needs 'auto', 'all' or 'rails'"):
        ndv2(2, inter="some")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="needs fewer nodes or inter='rails'"):
        dgx_a100(2000, inter="all")


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("mesh", "bytes_per_s"),
        ("mi250", "fabric_bytes_per_s"),
        ("mi250", "nic_bytes_per_s"),
        ("racks", "host_bytes_per_s"),
        ("racks", "uplink_bytes_per_s"),
        ("ring", "bytes_per_s"),
        ("uniform", "bytes_per_s"),
    ],
)
def test_a_rate_of_0_is_refused(name: str, rate: str) -> None:
    """It ended in a ZeroDivisionError."""
    with pytest.raises(TopologyError, match="rate of a link is 0 bytes/s, needs more than 0"):
        PRESETS[name](**{**EXAMPLES.get(name, {}), rate: 0.0})


def test_hosts_that_racks_cannot_have_are_named() -> None:
    """Too many filled the memory, others ended in an IndexError."""
    rates = {"host_bytes_per_s": 1e9, "uplink_bytes_per_s": 1e9}
    for ranks in (2001, 10**12):
        with pytest.raises(TopologyError, match=rf"\({ranks},\): {ranks} ranks have .* at most"):
            PRESETS["uniform"](ranks=ranks)
    with pytest.raises(TopologyError, match=r"hosts_per_rack is \(2, 0\), needs racks of 1 host"):
        PRESETS["racks"](hosts_per_rack=(2, 0), **rates)
    for order in ((0, 4), (1, 1), (-1, 0)):
        with pytest.raises(TopologyError, match=r"rank_order is .*, needs hosts of 0 to 3, each"):
            PRESETS["racks"](hosts_per_rack=(2, 2), rank_order=order, **rates)


def test_the_ndv2_mesh_has_six_nvlinks_a_gpu() -> None:
    made = ndv2()
    assert costs(made, 0, 1) == (0.7, 23.0)  # two NVLinks
    assert costs(made, 0, 2) == (0.7, 46.0)  # one
    for gpu in range(8):
        into = [link.beta_us_per_mb for link in made.links if link.dst == gpu]
        assert sorted(into) == [23.0, 23.0, 46.0, 46.0]
        # The bound of the reference table: 7 MB arrive at every GPU in 53.67 us.
        assert 7 / sum(1 / beta for beta in into) == pytest.approx(53.67, abs=0.005)


def test_the_ndv2_mesh_has_the_four_automorphisms_of_the_paper() -> None:
    assert group_order(ndv2()) == 4  # 5.3: "one of the NVLink topology's four automorphisms"
    assert group_order(ndv2(2)) == 4 * 4 * 2


def test_ndv2_nodes_share_one_nic_each_way() -> None:
    made = ndv2(2)
    assert costs(made, 3, 12) == (1.7, 106.0)
    assert [s.name for s in made.shared] == [
        f"node{n}-nic-{way}-0" for n in (0, 1) for way in ("out", "in")
    ]
    assert ends(made, "node0-nic-out-0") == {(s, d) for s in range(8) for d in range(8, 16)}
    assert not made.shared[0].links[0] < 64  # local links are off the NICs
    assert ndv2(1).shared == ndv2(1).switches == ()


def test_taccl_presets_have_the_costs_of_its_files() -> None:
    mesh_made, switch_made = ndv2_taccl_1mb(2), dgx2_taccl_1mb(2)
    assert costs(mesh_made, 6, 7) == (0.3, 23.0)
    assert costs(mesh_made, 4, 7) == (0.3, 46.0)
    assert costs(switch_made, 0, 15) == (0.3, 8.0)
    assert costs(mesh_made, 0, 8) == costs(switch_made, 0, 16) == (2.6, 105.0)


def test_dgx1_pairs_share_a_nic() -> None:
    made = dgx1(2)
    assert ends(made, "node1-nic-in-3") == {(s, d) for s in range(8) for d in (14, 15)}
    assert replace(dgx1(1), name="") == replace(ndv2(1), name="")


def test_dgx2_ports_carry_local_links_and_nics_the_others() -> None:
    made = dgx2(2)
    assert costs(made, 0, 1) == (0.7, 8.0)
    assert ends(made, "node1-port-out-3") == {(19, d) for d in range(16, 32) if d != 19}
    assert ends(made, "node0-nic-out-1") == {(s, d) for s in (2, 3) for d in range(16, 32)}
    switches = {s.name: s for s in made.switches}
    assert list(switches) == ["node0-nvswitch", "node1-nvswitch", "network"]
    assert not any(s.multicast for s in made.switches)
    assert len(switches["network"].links) == 2 * 16 * 16
    assert group_order(dgx2()) == math.factorial(16)
    pairs = 2**8 * math.factorial(8)
    assert group_order(made) == 2 * pairs * pairs


@pytest.mark.parametrize(
    ("make", "port", "nic", "multicast"),
    [(dgx_a100, 300e9, 25e9, False), (dgx_h100, 450e9, 50e9, True)],
)
def test_nvswitch_boxes_have_published_rates(
    make, port: float, nic: float, multicast: bool
) -> None:
    made = make(2)
    assert costs(made, 0, 7)[1] == pytest.approx(1e12 / port)
    assert costs(made, 0, 8)[1] == pytest.approx(1e12 / nic)
    assert ends(made, "node0-nic-out-5") == {(5, d) for d in range(8, 16)}
    assert [s.multicast for s in made.switches] == [multicast, multicast, False]


def test_mi250_dies_have_seven_links_each_and_are_irregular() -> None:
    made = mi250()
    for die in range(16):
        out = sorted(round(20 / link.beta_us_per_mb) for link in made.links if link.src == die)
        assert sum(out) == 7  # of 50 GB/s: 20 us/MB
        assert out[-1] == 4  # within the package
    degrees = {sum(link.src == die for link in made.links) for die in range(16)}
    assert degrees == {3, 4}
    assert translations(made) is None
    assert ends(mi250(2), "node0-nic-in-7") == {(s, d) for s in range(16, 32) for d in (14, 15)}


def test_rails_join_equal_gpus_alone() -> None:
    made = dgx_a100(3, inter="rails")
    assert {(k.src % 8) - (k.dst % 8) for k in made.links if k.src // 8 != k.dst // 8} == {0}
    assert ends(made, "node0-nic-out-2") == {(2, 10), (2, 18)}
    # By default all pairs up to 128 ranks, and rails from then on.
    assert (0, 15) in dgx_a100(16).link_index
    assert (0, 15) not in dgx_a100(17).link_index
    assert (0, 15) in dgx_a100(17, inter="all").link_index


def test_lattices_have_the_links_of_their_shape() -> None:
    assert [(k.src, k.dst) for k in ring(3, one_way=True).links] == [(0, 1), (1, 2), (2, 0)]
    assert len(ring(1).links) == 0
    assert len(ring(2).links) == 2
    assert len(mesh((3, 4)).links) == 2 * (2 * 4 + 3 * 3)
    assert len(torus((3, 4)).links) == 2 * 2 * 12
    assert len(torus((2, 3)).links) == 2 * (3 + 6)  # a side of two wraps onto itself
    assert len(torus((4, 4, 4)).links) == 6 * 64
    assert (1, 5) in torus((3, 4)).link_index
    assert (3, 0) in torus((3, 4)).link_index
    assert (3, 0) not in mesh((3, 4)).link_index
    assert costs(torus((4, 4)), 0, 1) == (0.5, 1e12 / (50 * 2**30))
    with pytest.raises(TopologyError, match=r"shape is \(3, 0\), needs at least one side"):
        torus((3, 0))


def test_lattice_symmetries() -> None:
    assert group_order(ring(7)) == 14
    assert group_order(ring(7, one_way=True)) == 7
    assert group_order(torus((5, 5))) == 8 * 25
    assert group_order(mesh((3, 3))) == 8
    assert group_order(hub_and_spoke(5)) == math.factorial(4)


def test_hub_and_spoke_meets_at_rank_0() -> None:
    assert set(hub_and_spoke(4).link_index) == {(0, 1), (1, 0), (0, 2), (2, 0), (0, 3), (3, 0)}


def test_fat_tree_uplinks_are_thinner_by_the_oversubscription() -> None:
    made = fat_tree((4, 3, 2), oversubscription=2.0, host_bytes_per_s=10e9, hop_alpha_us=0.5)
    rates = {s.name: 1e12 / s.beta_us_per_mb for s in made.shared}
    assert rates["nic-out-0"] == pytest.approx(10e9)
    assert rates["uplink0-in-5"] == pytest.approx(4 * 10e9 / 2)
    assert rates["uplink1-out-1"] == pytest.approx(12 * 10e9 / 4)
    assert sum(name.startswith("uplink1") for name in rates) == 2 * 2
    assert ends(made, "uplink0-out-0") == {(s, d) for s in range(4) for d in range(4, 24)}
    assert ends(made, "uplink1-in-1") == {(s, d) for s in range(12) for d in range(12, 24)}
    assert [costs(made, 0, d)[0] for d in (1, 4, 12)] == [1.7, 2.2, 2.7]
    switches = {
        s.name: {(made.links[i].src, made.links[i].dst) for i in s.links} for s in made.switches
    }
    assert set(switches) == {
        *(f"switch0-{i}" for i in range(6)),
        "switch1-0",
        "switch1-1",
        "switch2-0",
    }
    assert switches["switch2-0"] == {(s, d) for s, d in made.link_index if s // 12 != d // 12}
    assert (0, 1) in switches["switch0-0"]
    assert (0, 1) not in switches["switch1-0"]  # stays below its leaf
    assert (0, 4) in switches["switch1-0"]
    with pytest.raises(TopologyError, match="oversubscription is 0.5, needs at least 1.0"):
        fat_tree((4, 2), oversubscription=0.5)


def test_a_fat_tree_of_one_switch_has_nics_alone() -> None:
    made = fat_tree((4,))
    assert {s.name.partition("-")[0] for s in made.shared} == {"nic"}
    assert [s.name for s in made.switches] == ["switch0-0"]


@pytest.mark.sampled(4, of="long plans")
@pytest.mark.parametrize(
    ("make", "ranks", "links"),
    [
        (lambda: dgx_a100(128), 1024, 128 * 56 + 1024 * 127),
        (lambda: torus((16, 16, 16)), 4096, 4096 * 6),
        (lambda: ndv2(10), 80, 10 * 32 + 80 * 72),
    ],
)
def test_large_presets_are_no_hang(make, ranks: int, links: int) -> None:
    with no_hang():
        made = make()
        group = translations(made)
    assert (made.ranks, len(made.links)) == (ranks, links)
    if group is not None:
        assert np.array_equal(group[:, 0], np.arange(ranks))


def test_mistyped_sizes_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"shape is \(100, 100\): 10000 ranks have 99990000 li"):
        fat_tree((100, 100))
    with pytest.raises(TopologyError, match="10000000 ranks, needs at most 1000000"):
        ring(10_000_000)
