"""The order of GPUs that brings the NIC's to where plans expect them."""

from dataclasses import replace

import pytest

from benchmarks.instruments.simulated_hardware import SimulatedBox, simulate_probes
from headrace.collectives.measure.pcie.gpu_order import (
    box_of,
    visible_devices,
    visible_order,
    with_pcie,
)
from headrace.collectives.measure.pcie.inference import Hardware, infer_hardware
from headrace.errors import InputError
from headrace.topology.automorphism import is_automorphism
from headrace.topology.presets import dgx2, ndv2, ring
from tests.topology.automorphisms import automorphisms

FOUR = replace(ring(4), hosts=("box",), rank_host=(0,) * 4, shared=(), switches=())
SWITCHES = ((0, 1), (2, 3), (4, 5), (6, 7))


def hardware(nic: tuple[int, ...], switches: tuple[tuple[int, ...], ...] = SWITCHES) -> Hardware:
    return Hardware(
        nearest_cpu=0,
        switches=switches,
        nic_gpus=nic,
        cpu_confidence=1.0,
        switch_confidence=1.0,
        nic_confidence=1.0,
        loopback_us=(1.9, 2.5),
        pair_ratio=0.5,
        switch_gb_per_s=12.0,
        notes=(),
    )


@pytest.mark.parametrize("nic", SWITCHES)
def test_the_nic_comes_close_to_gpu_0_on_ndv2(nic: tuple[int, ...]) -> None:
    # as TACCL does with one of the four automorphisms of the NVLink graph
    box = box_of(ndv2(2))
    assert len(automorphisms(box)) == 4
    order = visible_order(ndv2(2), hardware(nic))
    assert order[0] in nic
    assert is_automorphism(box, order) is None


def test_nothing_moves_where_all_is_well() -> None:
    assert visible_order(ndv2(1), hardware((0, 1))) == tuple(range(8))
    assert visible_devices((2, 0, 1)) == "CUDA_VISIBLE_DEVICES=2,0,1"


def test_a_box_with_endless_automorphisms() -> None:
    switches = tuple((g, g + 1) for g in range(0, 16, 2))
    order = visible_order(dgx2(1), hardware((6, 7), switches), (0, 1))
    assert sorted(order[:2]) == [6, 7]
    assert sorted(order) == list(range(16))


def test_from_probes_to_order() -> None:
    box = SimulatedBox(
        switch_cpu=(0, 0, 1, 1), gpu_switch=(0, 0, 1, 1, 2, 2, 3, 3), nic_cpu=1, nic_switch=3
    )
    found = infer_hardware(simulate_probes(box, noise=0.05))
    assert visible_order(ndv2(1), found)[0] in (6, 7)


def test_what_cannot_be_ordered() -> None:
    with pytest.raises(InputError, match="has 4 ranks on its first host, the probes 8 GPUs"):
        visible_order(FOUR, hardware((0, 1)))
    with pytest.raises(InputError, match="near_nic has 8, needs places from 0 to 7"):
        visible_order(ndv2(1), hardware((0, 1)), (8,))
    with pytest.raises(InputError, match="no GPU shares a PCIe switch with the NIC"):
        visible_order(ndv2(1), hardware(()))
    with pytest.raises(InputError, match=r"NIC's GPUs \[0, 1\] to places \[0, 7\]"):
        visible_order(ndv2(1), hardware((0, 1)), (0, 7))


def test_pcie_switches_limit_links_between_hosts() -> None:
    machine, found = ndv2(2), hardware((2, 3))
    order = visible_order(machine, found)
    placed = with_pcie(machine, found, order)
    added = placed.shared[len(machine.shared) :]
    assert len(added) == 2 * 2 * 4
    assert placed.links == machine.links
    for capacity in added:
        assert capacity.beta_us_per_mb == pytest.approx(1e3 / 12)
        links = [machine.links[index] for index in capacity.links]
        assert all(machine.rank_host[k.src] != machine.rank_host[k.dst] for k in links)
        ends = {k.src if "-out-" in capacity.name else k.dst for k in links}
        gpus = {order[rank % 8] for rank in ends}
        assert any(gpus <= set(group) for group in SWITCHES)
    assert with_pcie(ndv2(1), found, order) == ndv2(1)
