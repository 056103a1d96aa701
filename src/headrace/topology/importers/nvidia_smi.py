"""The text that ``nvidia-smi topo -m`` prints: NVLinks and PCIe paths between GPUs and NICs."""

import re

import numpy as np

from headrace.errors import TopologyError
from headrace.files import decoded
from headrace.topology.importers.machine import (
    LEVELS,
    MAX_GPUS,
    NVLINK_BYTES_PER_S,
    LinkCosts,
    Machine,
    assemble,
)
from headrace.topology.presets.boxes import Inter
from headrace.topology.topology import Topology

MAX_DIRECT_LINKS = 18
"""Most NVLinks of a GPU of any generation so far: more in a row mean a switch."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU\d{1,4}")
_NVLINK = re.compile(r"NV(\d{1,2})")


def parse_nvidia_smi(
    content: bytes,
    source: str,
    *,
    nodes: int = 1,
    inter: Inter = "auto",
    costs: LinkCosts | None = None,
    name: str = "nvidia-smi",
) -> Topology:
    """Return the topology of `nodes` machines as ``nvidia-smi topo -m`` shows them.

    ``NV#`` is that many NVLinks. If a GPU shows more of them than GPUs have, and to all others
    equally many, they go through an NVSwitch, and each GPU has one port each way. Of three or four
    GPUs of a DGX-2 it shows as many as of a box without a switch, as which it is read: NCCL's file
    has the switch. Multicast is not shown: it is assumed absent. GPUs that NVLinks do not join send
    over PCIe. NIC traffic uses the nearest NIC; see `assemble`. The matrix gives no rates: see
    `LinkCosts`.

    Raises
    ------
    TopologyError : naming the file, the line, the row and column, and what is allowed.
    """
    text = _ANSI.sub("", decoded(content, source, TopologyError))
    devices, rows = _rows(text, source)
    gpus = [device for device in devices if _GPU.fullmatch(device)]
    nics = [device for device in devices if not _GPU.fullmatch(device)]
    for gpu in gpus:
        if gpu not in rows:
            raise TopologyError(
                f"{source}: row {gpu} is missing, needs the whole matrix: save it with "
                "'nvidia-smi topo -m > FILE'"
            )
    paths = [[_path(*rows[row][column], row == column) for column in gpus] for row in gpus]
    links = np.array([[count for count, _ in row] for row in paths], np.int64)
    levels = tuple(tuple(level for _, level in row) for row in paths)
    _check_symmetric(links, np.array(levels), gpus, source)
    costs = costs or LinkCosts()
    machine = Machine(
        name=name,
        direct=links,
        link_rate=costs.link_bytes_per_s or NVLINK_BYTES_PER_S[3],
        switched=_switched(links, gpus, source),
        levels=levels,
        pcie=(costs.pcie_bytes_per_s,) * len(gpus),
        nics=(costs.nic_bytes_per_s,) * len(nics),
        nic_levels=tuple(tuple(_level(*rows[gpu][nic]) for nic in nics) for gpu in gpus),
    )
    return assemble(machine, costs, nodes, inter, source)


MatrixRows = dict[str, dict[str, tuple[str, str]]]
"""Row -> column -> (cell, its place for messages)."""


def _rows(text: str, source: str) -> tuple[list[str], MatrixRows]:
    """Return the devices of the header, and the rows."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if _is_header(line.split())), None)
    if start is None:
        raise TopologyError(
            f"{source}: has no line of device names beginning with GPU0, needs the output of "
            "'nvidia-smi topo -m'"
        )
    devices = _devices(lines[start], f"{source}:{start + 1}")
    rows: MatrixRows = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        cells = line.split()
        if not cells or cells[0] not in devices:
            if cells and rows and cells[0].startswith(("Legend", "NIC")):
                break
            continue
        if cells[0] in rows:
            raise TopologyError(f"{source}:{number}: row {cells[0]} occurs twice")
        if len(cells) <= len(devices):
            raise TopologyError(
                f"{source}:{number}: row {cells[0]} has {len(cells) - 1} cells, needs "
                f"{len(devices)}: one for each of {devices[0]} to {devices[-1]}"
            )
        where = f"{source}:{number}: row {cells[0]}, column"
        named = zip(devices, cells[1:], strict=False)
        rows[cells[0]] = {device: (cell, f"{where} {device}") for device, cell in named}
    return devices, rows


def _is_header(cells: list[str]) -> bool:
    return bool(cells) and cells[0] == "GPU0" and "X" not in cells[:2]


def _devices(line: str, where: str) -> list[str]:
    # What follows the devices ("CPU Affinity  NUMA Affinity ...") describes GPUs, and is not used.
    devices: list[str] = []
    for cell in line.split():
        if cell in ("CPU", "NUMA", "GPU"):
            break
        devices.append(cell)
    if len(devices) > 2 * MAX_GPUS:
        raise TopologyError(f"{where}: has more than {2 * MAX_GPUS} devices")
    if len(set(devices)) < len(devices):
        raise TopologyError(f"{where}: a device occurs twice, needs distinct names")
    return devices


def _path(cell: str, where: str, own: bool) -> tuple[int, str]:
    if own != (cell == "X"):
        needed = "X, as it is the GPU itself" if own else "no X, as they are two GPUs"
        raise TopologyError(f"{where} is {cell[:20]!r}, needs {needed}")
    if own:
        return 0, "PIX"
    nvlink = _NVLINK.fullmatch(cell)
    # A path over NVLinks hides the PCIe path beneath it, which is then not needed.
    return (int(nvlink[1]), "SYS") if nvlink else (0, _level(cell, where))


def _level(cell: str, where: str) -> str:
    if cell not in LEVELS:
        raise TopologyError(f"{where} is {cell[:20]!r}, needs NV# or one of {', '.join(LEVELS)}")
    return cell


def _check_symmetric(links: np.ndarray, levels: np.ndarray, names: list[str], source: str) -> None:
    for i, j in np.argwhere(np.tril((links != links.T) | (levels != levels.T))):
        raise TopologyError(
            f"{source}: rows {names[i]} and {names[j]} differ about the path between them, needs "
            "the same: was the file edited or cut?"
        )


def _switched(links: np.ndarray, names: list[str], source: str) -> tuple[int, ...]:
    switched: list[int] = []
    for i, row in enumerate(links):
        counts = set(row[row > 0].tolist())
        if row.sum() <= MAX_DIRECT_LINKS:
            switched.append(0)
        elif len(counts) == 1:
            switched.append(counts.pop())
        else:
            raise TopologyError(
                f"{source}: row {names[i]} has {row.sum()} NVLinks, needs at most "
                f"{MAX_DIRECT_LINKS}, or equally many to every GPU (through a switch)"
            )
    return tuple(switched)
