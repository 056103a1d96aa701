"""TACCL's topology files: JSON, costs in us per chunk of the size in the file's name.

The compact form gives two betas (eight GPUs in the NVLink mesh of NDv2: over two NVLinks, over
one) or a single one (GPUs around a switch, one port each way). The custom form gives matrices
``links[dst][src]``, ``betas`` and ``invbws`` (read in the same way). ``invbw`` is the total cost of
a chunk, and follows from alpha and beta: it is checked and not used.

Files for small chunks have scaled costs, so that their users could truncate them to integers:
comparing them with those for 1 MB shows a factor of 100 in files for 1 KB and of 10 in those for
32 KB, and that their MB is 1,024 KB.
"""

import re

from headrace import fields
from headrace.errors import TopologyError
from headrace.fields import Field
from headrace.files import decoded, parse_json
from headrace.topology.importers.machine import MAX_GPUS
from headrace.topology.importers.reading import finite
from headrace.topology.presets.boxes import Box, Inter, LocalLink, Nics, cluster
from headrace.topology.presets.nvidia import mesh_box, nvswitch_box
from headrace.topology.topology import Topology

_CHUNK = re.compile(r"_(\d{1,6})(KB|MB)", re.IGNORECASE)
_SCALES = {1 / 1024: 100.0, 32 / 1024: 10.0}


def parse_taccl(content: bytes, source: str, *, nodes: int = 1, inter: Inter = "auto") -> Topology:
    """Return the topology of `nodes` nodes of a TACCL file.

    The size of chunks that costs are for, and the factor of all costs, follow from the file's field
    ``name`` (NDv2_32KB: 1/32 MB, 10), else they are 1 MB and 1.

    NIC traffic is off all other links; GPUs share the NICs of their node evenly, in order.
    Switches cannot multicast.

    Raises
    ------
    TopologyError : naming the file, the field, what was found and what is allowed.
    """
    text = decoded(content, source, TopologyError)
    table = Field(parse_json(text, source, TopologyError), source, TopologyError)
    name = table.at("name").text()
    gpus = table.at("gpus_per_node").integer(1, MAX_GPUS)
    chunk, factor = _units(name, source)
    alpha = _cost(table.at("alpha"), zero=True) / factor
    nics, nic_beta, remote_alpha = _remote(table, nodes)
    if gpus % nics:
        raise table.at("nics_per_node").fail(f"is {nics}, needs a divisor of the {gpus} GPUs")
    remote = Nics.alike(
        tuple(gpu // (gpus // nics) for gpu in range(gpus)),
        nic_beta / (factor * chunk),
        remote_alpha / factor,
    )
    if "links" in table.found:
        local = _matrices(table, gpus, alpha, factor * chunk)
        box = Box(name=name, gpus=gpus, local=local, nics=remote)
    else:
        for invbw in table.at("node_invbws_list").items():
            _cost(invbw)
        box = _compact(name, gpus, table.at("node_betas_list"), factor * chunk, alpha, remote)
    try:
        return cluster(box, nodes, inter)
    except TopologyError as error:
        raise TopologyError(f"{source}: {error}") from error


def _compact(name: str, gpus: int, field: Field, unit: float, alpha: float, remote: Nics) -> Box:
    betas = [_cost(beta) / unit for beta in field.items()]
    if len(betas) == 1:
        return nvswitch_box(name, gpus, betas[0], alpha, remote)
    if len(betas) == 2 and gpus == 8:
        return mesh_box(name, alpha, (betas[0], betas[1]), remote)
    raise field.fail(
        f"has {len(betas)} entries for {gpus} GPUs, needs one (GPUs around a switch) or two for 8 "
        "GPUs (NDv2), or give 'links', 'betas' and 'invbws'"
    )


def _matrices(table: Field, gpus: int, alpha: float, unit: float) -> tuple[LocalLink, ...]:
    links, betas, _ = (_matrix(table.at(name), gpus) for name in ("links", "betas", "invbws"))
    local_links: list[LocalLink] = []
    for dst in range(gpus):
        for src in range(gpus):
            if links[dst][src] not in (0, 1):
                raise table.at("links", dst, src).fail(f"is {links[dst][src]}, needs 0 or 1")
            if not links[dst][src]:
                continue
            if src == dst:
                raise table.at("links", dst, src).fail(f"joins GPU {src} to itself, needs 0")
            beta = finite(betas[dst][src], f"{table.source}: field 'betas[{dst}][{src}]'")
            local_links.append((src, dst, alpha, beta / unit))
    return tuple(sorted(local_links))


def _units(name: str, source: str) -> tuple[float, float]:
    """Return MB of a chunk, and the factor of costs."""
    match = _CHUNK.search(name)
    named = int(match[1]) / (1024 if match[2].upper() == "KB" else 1) if match else 1.0
    return finite(named, f"{source}: the chunk's size in MB"), _SCALES.get(named, 1.0)


def _remote(table: Field, nodes: int) -> tuple[int, float, float]:
    per_node = table.at("nics_per_node", default=None)
    if per_node.found is None:
        if nodes > 1:
            raise per_node.fail(
                f"is missing, so nodes is {nodes} cannot be, needs nodes 1 or the fields "
                "nics_per_node, remote_alpha, remote_beta"
            )
        return 1, 1.0, 0.0
    nics = per_node.integer(1, MAX_GPUS)
    return nics, _cost(table.at("remote_beta")), _cost(table.at("remote_alpha"), zero=True)


def _cost(field: Field, *, zero: bool = False) -> float:
    return finite(field.read(fields.number), f"{field.source}: field '{field.path}'", zero=zero)


def _matrix(field: Field, gpus: int) -> list[list[float]]:
    rows = [row.items() for row in field.items()]
    if len(rows) != gpus or any(len(row) != gpus for row in rows):
        raise field.fail(f"needs {gpus} rows of {gpus} numbers each")
    return [[_cost(value, zero=True) for value in row] for row in rows]
