"""GPU order of a job on a box whose hardware was inferred (TACCL, dissertation 5.3).

GPU numbers differ from one virtual machine to the next, and with them the GPUs on the NIC's switch.
An automorphism of the box's links renumbers GPUs without changing any link, and puts the NIC's GPUs
at the ranks that plans expect: ``CUDA_VISIBLE_DEVICES`` is that automorphism.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.collectives.measure.pcie.inference import Hardware
from headrace.errors import InputError
from headrace.topology import SharedCapacity, Topology
from headrace.topology.ports import by_direction
from headrace.topology.topology import beta_from_bytes_per_s
from headrace.topology.transforms import restricted

MAX_ORDERS = 100_000
"""Limit of the search; all orders of 16 equal GPUs are more, but few differ at `near_nic`."""


def box_of(machine: Topology) -> Topology:
    """Return the first host of `machine` and the links within it."""
    ranks = [rank for rank, host in enumerate(machine.rank_host) if host == machine.rank_host[0]]
    return replace(restricted(machine, ranks, f"{machine.name}-box"), shared=(), switches=())


def visible_order(
    machine: Topology, hardware: Hardware, near_nic: Sequence[int] = (0,)
) -> tuple[int, ...]:
    """Return the GPU for every rank of the box, in the order that moves the fewest.

    Parameters
    ----------
    machine : its first host's links give the automorphisms.
    near_nic : ranks of the first host that plans expect on the NIC's PCIe switch.

    Raises
    ------
    InputError : if no GPU shares a switch with the NIC, the box has another number of GPUs, or no
        automorphism brings the NIC's GPUs to `near_nic`.
    """
    box, gpus = box_of(machine), sum(map(len, hardware.switches))
    if box.ranks != gpus:
        raise InputError(
            f"topology '{machine.name}' has {box.ranks} ranks on its first host, the probes "
            f"{gpus} GPUs: needs as many"
        )
    for place in near_nic:
        if not 0 <= place < gpus:
            raise InputError(f"near_nic has {place}, needs places from 0 to {gpus - 1}")
    if not hardware.nic_gpus:
        raise InputError("no GPU shares a PCIe switch with the NIC: there is no order to prefer")
    orders = _orders(box, tuple(near_nic))
    fitting = [
        order for order in orders if all(order[place] in hardware.nic_gpus for place in near_nic)
    ]
    if not fitting:
        raise InputError(
            f"no order of the GPUs that keeps the links of '{machine.name}' brings the NIC's GPUs "
            f"{list(hardware.nic_gpus)} to places {list(near_nic)}; name other places"
        )
    return min(fitting, key=lambda order: (sum(g != p for p, g in enumerate(order)), order))


def _orders(box: Topology, places: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return automorphisms of the box: one for each distinct content of `places`."""
    from headrace.topology.refinement import automorphism_generators

    generators, _ = automorphism_generators(box)
    identity = np.arange(box.ranks)
    generator_of = {places: identity}
    edge = [places]
    while edge and len(generator_of) < MAX_ORDERS:
        reached: list[tuple[int, ...]] = []
        for held in edge:
            for generator in generators:
                image = tuple(generator[list(held)].tolist())
                if image not in generator_of:
                    generator_of[image] = generator[generator_of[held]]
                    reached.append(image)
        edge = reached
    return [tuple(order.tolist()) for order in generator_of.values()]


def visible_devices(order: Sequence[int]) -> str:
    """Return the environment setting that makes GPU ``order[p]`` device p."""
    return f"CUDA_VISIBLE_DEVICES={','.join(map(str, order))}"


def with_pcie(machine: Topology, hardware: Hardware, order: Sequence[int]) -> Topology:
    """Return `machine` with a shared capacity, each way, for every PCIe switch of two GPUs or more.

    They hold the links between hosts, which all pass through host memory (5.3). Every host is
    assumed to be ordered like the first by its own probes. A machine of one host is unchanged.

    Raises
    ------
    InputError : if a host has another number of ranks.
    """
    rate = hardware.switch_gb_per_s
    if len(machine.hosts) == 1 or rate is None:
        return machine
    count, hosts = len(hardware.switches), np.array(machine.rank_host)
    switch_of = {gpu: index for index, group in enumerate(hardware.switches) for gpu in group}
    owner = np.zeros(machine.ranks, np.int64)  # by rank: its host's switch
    for host, name in enumerate(machine.hosts):
        ranks = np.flatnonzero(hosts == host)
        if len(ranks) != len(order):
            raise InputError(
                f"host '{name}' has {len(ranks)} ranks, the probed box {len(order)} GPUs: needs "
                "as many"
            )
        owner[ranks] = [host * count + switch_of[gpu] for gpu in order]
    src, dst = machine.columns.src, machine.columns.dst
    across = np.flatnonzero(hosts[src] != hosts[dst])
    beta = beta_from_bytes_per_s(rate * 1e9)
    added = [
        SharedCapacity(
            name=f"pcie-{direction}-{machine.hosts[index // count]}-{index % count}",
            links=links,
            beta_us_per_mb=beta,
        )
        for index, direction, links in by_direction(
            owner[src[across]], owner[dst[across]], len(machine.hosts) * count, across
        )
        if len(hardware.switches[index % count]) > 1
    ]
    if not added:
        return machine
    return replace(machine, name=f"{machine.name}-pcie", shared=(*machine.shared, *added))
