"""TACCL's topology files: JSON, costs in us per chunk of the size in the file's name.

The compact form gives two betas (eight GPUs in the NVLink mesh of NDv2: over two NVLinks, over
one) or a single one (GPUs around a switch, one port each way). The custom form gives matrices
``links[dst][src]``, ``betas`` and ``invbws`` (read in the same way). ``invbw`` is the total cost of
a chunk, and follows from alpha and beta: it is checked and not used.

Files for small chunks have scaled costs, so that their users could truncate them to integers:
comparing them with those for 1 MB shows a factor of 100 in files for 1 KB and of 10 in those for
32 KB, and that their MB is 1,024 KB.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from headrace import fields
from headrace.errors import TopologyError
from headrace.topology.importers.machine import MAX_GPUS
from headrace.topology.importers.reading import decoded, finite
from headrace.topology.presets.boxes import Box, Inter, LocalLink, cluster
from headrace.topology.presets.nvidia import mesh_box, nvswitch_box
from headrace.topology.topology import Topology

_CHUNK = re.compile(r"_(\d{1,6})(KB|MB)", re.IGNORECASE)
_SCALES = {1 / 1024: 100.0, 32 / 1024: 10.0}


def parse_taccl(
    content: bytes,
    source: str,
    *,
    nodes: int = 1,
    inter: Inter = "auto",
    chunk_mb: float | None = None,
    scale: float | None = None,
) -> Topology:
    """Return the topology of `nodes` nodes of a TACCL file.

    `chunk_mb` is the size in MB that costs are for, `scale` the factor of all costs; by default
    they follow from the file's field ``name`` (NDv2_32KB: 1/32 MB, 10), else 1 and 1.

    NIC traffic is off all other links; GPUs share the NICs of their node evenly, in order.
    Switches cannot multicast.

    Raises
    ------
    TopologyError : naming the file, the field, what was found and what is allowed.
    """
    table = _table(content, source)
    name = _text(table, "name", source)
    gpus = _count(table, "gpus_per_node", source, MAX_GPUS)
    chunk, factor = _units(name, chunk_mb, scale, source)
    alpha = _cost(table, "alpha", source, zero=True) / factor
    nics, nic_beta, remote_alpha = _remote(table, nodes, source)
    if gpus % nics:
        raise TopologyError(
            f"{source}: field 'nics_per_node' is {nics}, needs a divisor of the {gpus} GPUs"
        )
    remote = (
        tuple(gpu // (gpus // nics) for gpu in range(gpus)),
        nic_beta / (factor * chunk),
        remote_alpha / factor,
    )
    if "links" in table:
        local = _matrices(table, gpus, alpha, factor * chunk, source)
        box = Box(
            name=name,
            gpus=gpus,
            local=local,
            nic_of=remote[0],
            nic_betas=(remote[1],) * nics,
            remote_alpha=remote[2],
        )
    else:
        betas = [beta / (factor * chunk) for beta in _costs(table, "node_betas_list", source)]
        _costs(table, "node_invbws_list", source)
        box = _compact(name, gpus, betas, alpha, remote, source)
    try:
        return cluster(box, nodes, inter)
    except TopologyError as error:
        raise TopologyError(f"{source}: {error}") from error


def _compact(
    name: str,
    gpus: int,
    betas: list[float],
    alpha: float,
    remote: tuple[tuple[int, ...], float, float],
    source: str,
) -> Box:
    if len(betas) == 1:
        return nvswitch_box(name, gpus, betas[0], alpha, remote)
    if len(betas) == 2 and gpus == 8:
        return mesh_box(name, alpha, (betas[0], betas[1]), remote)
    raise TopologyError(
        f"{source}: field 'node_betas_list' has {len(betas)} entries for {gpus} GPUs, needs one "
        "(GPUs around a switch) or two for 8 GPUs (NDv2), or give 'links', 'betas' and 'invbws'"
    )


def _matrices(
    table: Mapping[str, Any], gpus: int, alpha: float, unit: float, source: str
) -> tuple[LocalLink, ...]:
    links, betas = _matrix(table, "links", gpus, source), _matrix(table, "betas", gpus, source)
    _matrix(table, "invbws", gpus, source)
    made: list[LocalLink] = []
    for dst in range(gpus):
        for src in range(gpus):
            if links[dst][src] not in (0, 1):
                raise TopologyError(
                    f"{source}: field 'links[{dst}][{src}]' is {links[dst][src]}, needs 0 or 1"
                )
            if not links[dst][src]:
                continue
            if src == dst:
                raise TopologyError(
                    f"{source}: field 'links[{dst}][{src}]' joins GPU {src} to itself, needs 0"
                )
            beta = finite(betas[dst][src], f"{source}: field 'betas[{dst}][{src}]'")
            made.append((src, dst, alpha, beta / unit))
    return tuple(sorted(made))


def _units(
    name: str, chunk_mb: float | None, scale: float | None, source: str
) -> tuple[float, float]:
    found = _CHUNK.search(name)
    named = int(found[1]) / (1024 if found[2].upper() == "KB" else 1) if found else 1.0
    chunk = finite(named if chunk_mb is None else chunk_mb, f"{source}: the chunk's size in MB")
    by_size = _SCALES.get(chunk, 1.0)
    return chunk, finite(by_size if scale is None else scale, f"{source}: the costs' scale")


def _remote(table: Mapping[str, Any], nodes: int, source: str) -> tuple[int, float, float]:
    if "nics_per_node" not in table:
        if nodes > 1:
            raise TopologyError(
                f"{source}: field 'nics_per_node' is missing, so nodes is {nodes} cannot be, needs "
                "nodes 1 or the fields nics_per_node, remote_alpha, remote_beta"
            )
        return 1, 1.0, 0.0
    nics = _count(table, "nics_per_node", source, MAX_GPUS)
    remote_alpha = _cost(table, "remote_alpha", source, zero=True)
    return nics, _cost(table, "remote_beta", source), remote_alpha


def _table(content: bytes, source: str) -> Mapping[str, Any]:
    try:
        found = json.loads(decoded(content, source))
    except json.JSONDecodeError as error:
        raise TopologyError(
            f"{source}:{error.lineno}: column {error.colno} is no JSON: {error.msg}"
        ) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, TopologyError):
            raise
        raise TopologyError(f"{source}: is no JSON of a topology: {error}") from error
    if not isinstance(found, dict):
        raise TopologyError(f"{source}: is no JSON object, needs one with name, gpus_per_node, ...")
    return found  # pyright: ignore[reportUnknownVariableType]


def _field(table: Mapping[str, Any], name: str, source: str) -> Any:
    if name not in table:
        raise TopologyError(f"{source}: field '{name}' is missing")
    return table[name]


def _text(table: Mapping[str, Any], name: str, source: str) -> str:
    try:
        return fields.text(_field(table, name, source))
    except TypeError as error:
        raise TopologyError(f"{source}: field '{name}': {error}, needs a text") from error


def _count(table: Mapping[str, Any], name: str, source: str, most: int) -> int:
    try:
        found = fields.integer(_field(table, name, source))
    except TypeError as error:
        raise TopologyError(f"{source}: field '{name}': {error}") from error
    if not 1 <= found <= most:
        raise TopologyError(f"{source}: field '{name}' is {found}, needs 1 to {most}")
    return found


def _cost(table: Mapping[str, Any], name: str, source: str, *, zero: bool = False) -> float:
    return _finite(_field(table, name, source), f"{source}: field '{name}'", zero=zero)


def _finite(found: Any, where: str, *, zero: bool) -> float:
    try:
        return finite(fields.number(found), where, zero=zero)
    except TypeError as error:
        raise TopologyError(f"{where}: {error}") from error


def _costs(table: Mapping[str, Any], name: str, source: str) -> list[float]:
    try:
        found = fields.items(_field(table, name, source))
    except TypeError as error:
        raise TopologyError(f"{source}: field '{name}': {error}") from error
    return [
        _finite(value, f"{source}: field '{name}[{i}]'", zero=False)
        for i, value in enumerate(found)
    ]


def _matrix(table: Mapping[str, Any], name: str, gpus: int, source: str) -> list[list[float]]:
    try:
        rows = [fields.items(row) for row in fields.items(_field(table, name, source))]
    except TypeError as error:
        raise TopologyError(f"{source}: field '{name}': {error}") from error
    if len(rows) != gpus or any(len(row) != gpus for row in rows):
        raise TopologyError(f"{source}: field '{name}' needs {gpus} rows of {gpus} numbers each")
    return [
        [
            _finite(value, f"{source}: field '{name}[{i}][{j}]'", zero=True)
            for j, value in enumerate(row)
        ]
        for i, row in enumerate(rows)
    ]
