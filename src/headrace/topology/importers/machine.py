"""Description of one machine by tools (links, PCIe paths, NICs), and the topology made of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.errors import TopologyError
from headrace.facades import public_value
from headrace.topology.presets.boxes import Box, Inter, LocalLink, Nics, cluster, gpu_ports
from headrace.topology.topology import Switch, Topology, beta_from_bytes_per_s

LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Levels of a PCIe path, nearest first: one switch, several, the host bridge, across host
bridges of a NUMA node, across sockets."""

MAX_GPUS = 256

NVLINK_BYTES_PER_S: Mapping[int, float] = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
"""NVLink generation -> bytes a second of one link, each way, as NVIDIA publishes them."""


@public_value("headrace.topology.importers")
class LinkCosts:
    """Default costs where a tool has none; set them from measurements where available.

    Attributes
    ----------
    link_bytes_per_s : of one NVLink or Infinity Fabric link, each way. None: by the GPU's
        generation where the file has it, else 25 GB/s (NVLink 2 to 4).
    alpha_us : of a message over such links; 0.7 us is NVLink's in TACCL's costs (Table 5.1).
    pcie_bytes_per_s : of a GPU's PCIe port, each way (12.5 GB/s: generation 3, 16 lanes).
    sys_bytes_per_s : of a path between sockets, if that is less.
    pcie_alpha_us : of a message between GPUs by level of the path: round numbers, no measured ones.
    nic_bytes_per_s : of a NIC, each way.
    remote_alpha_us : of a message between nodes; 1.7 us is InfiniBand's in the same costs.
    """

    link_bytes_per_s: float | None = None
    alpha_us: float = 0.7
    pcie_bytes_per_s: float = 12.5e9
    sys_bytes_per_s: float = 10e9
    pcie_alpha_us: Mapping[str, float] = field(
        default_factory=lambda: {"PIX": 1.0, "PXB": 1.2, "PHB": 1.5, "NODE": 2.0, "SYS": 2.5}
    )
    nic_bytes_per_s: float = 25e9
    remote_alpha_us: float = 1.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine as described by tools.

    Attributes
    ----------
    direct : links from GPU to GPU, int64 (gpus, gpus).
    link_rate : bytes a second of one such link, each way.
    switched : links of every GPU into the switch, which joins all GPUs with any.
    levels : level of the PCIe path between any two GPUs.
    pcie : bytes a second of every GPU's PCIe port.
    nics : bytes a second of every NIC.
    nic_levels : level of every GPU's path to each NIC.
    multicast : the switch can copy a message to several GPUs.
    """

    name: str
    direct: np.ndarray
    link_rate: float
    switched: tuple[int, ...]
    levels: tuple[tuple[str, ...], ...]
    pcie: tuple[float, ...]
    nics: tuple[float, ...]
    nic_levels: tuple[tuple[str, ...], ...]
    multicast: bool = False


def assemble(machine: Machine, costs: LinkCosts, nodes: int, inter: Inter, source: str) -> Topology:
    """Return `nodes` such machines.

    GPUs send over NVLinks; where these do not join all GPUs, over PCIe too, and then every GPU's
    PCIe port is a shared capacity each way. Every GPU uses the nearest NIC (of equally near
    ones the one with the fewest GPUs so far): NIC traffic is off the NVLinks and switch ports, and
    its sharing with other PCIe traffic is not modelled.

    Raises
    ------
    TopologyError : if there are to be several nodes of a machine without a NIC.
    """
    if nodes > 1 and not machine.nics:
        raise TopologyError(
            f"{source}: there is no NIC, so nodes is {nodes} cannot be, needs nodes 1 or a file "
            "of a machine with NICs"
        )
    gpus = len(machine.switched)
    into = [
        beta_from_bytes_per_s(machine.link_rate * count) if count else 0.0
        for count in machine.switched
    ]
    local = _switched(machine, into, costs)
    capacities = list(gpu_ports(local, into))
    links = tuple(range(len(local)))
    switch = Switch(name="nvswitch", links=links, multicast=machine.multicast)
    local += _direct(machine, costs)
    if not _joined(gpus, local):
        over = _pcie(machine, costs, {(s, d) for s, d, _, _ in local})
        ports = list(map(beta_from_bytes_per_s, machine.pcie))
        capacities += gpu_ports(over, ports, "pcie", len(local))
        local += over
    box = Box(
        name=machine.name,
        gpus=gpus,
        local=tuple(local),
        capacities=tuple(capacities),
        switches=(switch,) if links else (),
        nics=Nics(
            _nearest(machine) if machine.nics else (0,) * gpus,
            tuple(map(beta_from_bytes_per_s, machine.nics or (costs.nic_bytes_per_s,))),
            costs.remote_alpha_us,
        ),
    )
    try:
        return cluster(box, nodes, inter)
    except TopologyError as error:
        raise TopologyError(f"{source}: {error}") from error


def _switched(machine: Machine, betas: list[float], costs: LinkCosts) -> list[LocalLink]:
    joined = [gpu for gpu, count in enumerate(machine.switched) if count]
    return [
        (s, d, costs.alpha_us, max(betas[s], betas[d])) for s in joined for d in joined if s != d
    ]


def _direct(machine: Machine, costs: LinkCosts) -> list[LocalLink]:
    return [
        (
            int(s),
            int(d),
            costs.alpha_us,
            beta_from_bytes_per_s(machine.link_rate * int(machine.direct[s, d])),
        )
        for s, d in np.argwhere(machine.direct > 0)
        if not (machine.switched[s] and machine.switched[d])
    ]


def _pcie(machine: Machine, costs: LinkCosts, there: set[tuple[int, int]]) -> list[LocalLink]:
    gpus = range(len(machine.switched))
    links: list[LocalLink] = []
    for s in gpus:
        for d in gpus:
            if s == d or (s, d) in there:
                continue
            level = machine.levels[s][d]
            rate = min(machine.pcie[s], machine.pcie[d])
            rate = min(rate, costs.sys_bytes_per_s) if level == "SYS" else rate
            links.append((s, d, costs.pcie_alpha_us[level], beta_from_bytes_per_s(rate)))
    return links


def _joined(gpus: int, links: list[LocalLink]) -> bool:
    """Return whether every GPU reaches every other one, and is reached."""
    from scipy.sparse.csgraph import connected_components

    joined = np.zeros((gpus, gpus), bool)
    for src, dst, _, _ in links:
        joined[src, dst] = True
    return connected_components(joined, connection="strong")[0] == 1


def _nearest(machine: Machine) -> tuple[int, ...]:
    load = [0] * len(machine.nics)
    nics: list[int] = []
    for levels in machine.nic_levels:
        nic = min(range(len(load)), key=lambda n: (LEVELS.index(levels[n]), load[n], n))
        load[nic] += 1
        nics.append(nic)
    return tuple(nics)
