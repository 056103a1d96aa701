"""The XML that NCCL and RCCL dump when ``NCCL_TOPO_DUMP_FILE`` is set: one machine's devices."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.errors import TopologyError
from headrace.topology.importers.machine import (
    LEVELS,
    MAX_GPUS,
    NVLINK_BYTES_PER_S,
    LinkCosts,
    Machine,
    assemble,
)
from headrace.topology.importers.xml import Element, parse_xml
from headrace.topology.presets.boxes import Inter
from headrace.topology.topology import Topology

_SWITCH_CLASS = "0x068000"
_NO_GPU_HERE = ("0x068001", "0x03", "0x12")
"""Classes of devices that are none of the GPUs and no switch: the processor, as POWER9's NVLinks
join it, and GPUs that the job does not see, which NCCL leaves out of the file."""

_GENERATION = {60: 1, 70: 2, 80: 3, 90: 4, 100: 5}  # by compute capability: the next lower one
_XGMI_BYTES_PER_S = 50e9
_MAX_PLACES = 64  # of a NIC that is listed below every cpu


def parse_nccl_xml(
    content: bytes,
    source: str,
    *,
    nodes: int = 1,
    inter: Inter = "auto",
    costs: LinkCosts | None = None,
    name: str = "nccl",
) -> Topology:
    """Return the topology of `nodes` machines as in NCCL's dump.

    GPUs are numbered by their ranks, or by devices if ranks are not given. NVLinks to devices of
    the class of bridges go into an NVSwitch, with one port each way and GPU; one of compute
    capability 9.0 or more is assumed to multicast. Those to processors, and to GPUs that the file
    does not have, are left out. Rates: an NVLink as published for the GPU's
    generation (unless in `costs`), a PCIe port from its speed and width, a NIC from its
    speed. GPUs that links do not join send over PCIe. NIC traffic uses the nearest NIC, see
    `assemble`.

    Raises
    ------
    TopologyError : naming the file, the line, the element and attribute, and what is allowed.
    """
    system = parse_xml(content, source)
    if system.tag != "system":
        raise TopologyError(
            f"{source}:{system.line}: the outermost element is '{system.tag}', needs 'system': a "
            "file that NCCL_TOPO_DUMP_FILE made"
        )
    hosts = {cpu.attributes.get("host_hash") for cpu in system.children if cpu.tag == "cpu"}
    if len(hosts) > 1:
        raise TopologyError(f"{source}: has cpus of {len(hosts)} hosts, needs the dump of one host")
    gpus = _gpus(system, source)
    nics = _nics(system, source)
    link_costs = costs or LinkCosts()
    direct, switched = _links(gpus, source)
    machine = Machine(
        name=name,
        direct=direct,
        link_rate=link_costs.link_bytes_per_s or _link_rate(gpus),
        switched=switched,
        levels=tuple(tuple(_level(a.path, b.path) for b in gpus) for a in gpus),
        pcie=tuple(gpu.pcie or link_costs.pcie_bytes_per_s for gpu in gpus),
        nics=tuple(nic.rate or link_costs.nic_bytes_per_s for nic in nics),
        nic_levels=tuple(tuple(_nearest(gpu, nic) for nic in nics) for gpu in gpus),
        multicast=all(gpu.sm >= 90 for gpu in gpus),
    )
    return assemble(machine, link_costs, nodes, inter, source)


Path = tuple[Element, ...]
"""The elements around a device, from the cpu inwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    element: Element
    path: Path
    bus: str
    sm: int
    pcie: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nic:
    rate: float | None
    paths: list[Path]


def _walk(element: Element, path: Path = ()) -> Iterator[tuple[Element, Path]]:
    for child in element.children:
        yield child, path
        yield from _walk(child, (*path, child))


def _gpus(system: Element, source: str) -> list[_Gpu]:
    numbered: list[tuple[int, int, _Gpu]] = []
    for element, path in _walk(system):
        if element.tag != "gpu":
            continue
        if not path or path[-1].tag != "pci" or path[0].tag != "cpu":
            raise TopologyError(
                f"{element.where(source)}: is not in a 'pci' of a 'cpu', needs to be"
            )
        pci = path[-1]
        gpu = _Gpu(
            element=element,
            path=path,
            bus=pci.text("busid", source).lower(),
            sm=element.integer("sm", source, default=0),
            pcie=_pcie_rate(pci, source),
        )
        rank = element.integer("rank", source, default=-1, least=-1)
        numbered.append((rank, element.integer("dev", source), gpu))
    if not numbered:
        raise TopologyError(f"{source}: has no element 'gpu', needs at least one")
    if len(numbered) > MAX_GPUS:
        raise TopologyError(
            f"{source}: has {len(numbered)} elements 'gpu', needs at most {MAX_GPUS}"
        )
    ranks = {rank for rank, _, _ in numbered}
    ranked = len(ranks) == len(numbered) and -1 not in ranks
    gpus = [gpu for _, _, gpu in sorted(numbered, key=lambda row: row[0] if ranked else row[1])]
    if len({gpu.bus for gpu in gpus}) < len(gpus):
        raise TopologyError(f"{source}: several gpus have one 'busid', needs distinct ones")
    return gpus


def _nics(system: Element, source: str) -> list[_Nic]:
    nics: dict[tuple[str, str], _Nic] = {}
    for element, path in _walk(system):
        if element.tag != "net" or not path or path[0].tag != "cpu":
            continue
        key = (element.attributes.get("name", ""), element.attributes.get("dev", ""))
        speed = element.integer("speed", source, default=0)  # Mbit/s
        # A NIC without a locality of its own is listed below every cpu.
        nic = nics.setdefault(key, _Nic(rate=speed * 1e6 / 8 if speed else None, paths=[]))
        nic.paths.append(path)
        if len(nic.paths) > _MAX_PLACES:
            raise TopologyError(
                f"{element.where(source)}: occurs more than {_MAX_PLACES} times, needs distinct "
                "names"
            )
    if len(nics) > MAX_GPUS:
        raise TopologyError(f"{source}: has {len(nics)} elements 'net', needs at most {MAX_GPUS}")
    return list(nics.values())


def _links(gpus: list[_Gpu], source: str) -> tuple[np.ndarray, tuple[int, ...]]:
    place = {gpu.bus: i for i, gpu in enumerate(gpus)}
    direct = np.zeros((len(gpus), len(gpus)), np.int64)
    switched = [0] * len(gpus)
    for i, gpu in enumerate(gpus):
        for element in gpu.element.children:
            if element.tag not in ("nvlink", "xgmi"):
                continue
            target = element.text("target", source).lower()
            count = element.integer("count", source, least=1, most=1024)
            kind = element.attributes.get("tclass", "").lower()
            if target in place and place[target] != i:
                direct[i, place[target]] += count
            elif target not in place and kind.startswith(_NO_GPU_HERE):
                continue
            elif kind.startswith(_SWITCH_CLASS[:6]):
                switched[i] += count
            else:
                raise TopologyError(
                    f"{element.where(source)}: attribute 'target' is {target[:40]!r}, needs the "
                    f"busid of another gpu, or tclass {_SWITCH_CLASS} (a switch)"
                )
    return direct, tuple(switched)


def _link_rate(gpus: list[_Gpu]) -> float:
    if any(child.tag == "xgmi" for gpu in gpus for child in gpu.element.children):
        return _XGMI_BYTES_PER_S
    levels = [level for level in _GENERATION if level <= min(gpu.sm for gpu in gpus)]
    return NVLINK_BYTES_PER_S[_GENERATION[max(levels, default=70)]]


def _pcie_rate(pci: Element, source: str) -> float | None:
    """Return bytes a second from "16.0 GT/s PCIe" and the width; None where they are unknown."""
    speed = pci.attributes.get("link_speed", "").split()
    width = pci.integer("link_width", source, default=0)
    if not 1 <= width <= 32:  # virtual machines have 0, 63 or 255 for an unknown one
        width = 16
    if len(speed) < 2 or speed[1] != "GT/s":
        return None
    try:
        rate = float(speed[0])
    except ValueError:
        return None
    if not 0 < rate <= 1024:
        return None
    # Eight of ten bits carry data up to 5 GT/s, and nearly all from then on.
    return rate * 1e9 / 8 * width * (0.8 if rate <= 5 else 128 / 130)


def _level(first: Path, second: Path) -> str:
    if first[0] is not second[0]:
        return "SYS"
    common = sum(1 for a, b in zip(first[1:], second[1:], strict=False) if a is b)
    if common == 0:
        return "PHB"
    # Paths end in the device itself: one step further out is the switch above it.
    return "PIX" if common >= max(len(first), len(second)) - 2 else "PXB"


def _nearest(gpu: _Gpu, nic: _Nic) -> str:
    # Without the element 'nic', paths of both end in the device.
    levels = [_level(gpu.path, tuple(e for e in path if e.tag != "nic")) for path in nic.paths]
    return min(levels, key=LEVELS.index)
