"""Topologies from other tools' files.

Every importer takes the file's bytes and its name, which errors begin with, and returns a
`Topology` or raises `TopologyError`, in bounded time and memory for any input.
"""

from pathlib import Path
from typing import Literal, get_args

from headrace.errors import TopologyError
from headrace.files import read_bytes
from headrace.topology.importers.edges import parse_edges
from headrace.topology.importers.machine import NVLINK_BYTES_PER_S, LinkCosts
from headrace.topology.importers.nccl_xml import parse_nccl_xml
from headrace.topology.importers.nvidia_smi import parse_nvidia_smi
from headrace.topology.importers.reading import MAX_BYTES
from headrace.topology.importers.taccl import parse_taccl
from headrace.topology.presets.boxes import Inter
from headrace.topology.topology import Topology

__all__ = [
    "FORMATS",
    "Format",
    "LinkCosts",
    "NVLINK_BYTES_PER_S",
    "format_of",
    "import_topology",
    "parse_edges",
    "parse_nccl_xml",
    "parse_nvidia_smi",
    "parse_taccl",
]

Format = Literal["taccl", "edges", "nvidia-smi", "nccl-xml"]
FORMATS: tuple[Format, ...] = get_args(Format)
"""Formats of files that `import_topology` reads."""


def import_topology(
    path: str | Path,
    file_format: Format | Literal["auto"] = "auto",
    *,
    nodes: int | None = None,
    inter: Inter = "auto",
    costs: LinkCosts | None = None,
) -> Topology:
    """Return the topology in a file of another tool; see the parsers for each format's content.

    Parameters
    ----------
    file_format : of the file; "auto" detects it by the file's beginning.
    nodes : number of such machines; for edge lists the hosts that the ranks are divided among
        (default: one machine; every rank of an edge list a host).
    inter : pairs of GPUs of different nodes that links join.
    costs : where the file has none (nvidia-smi, NCCL's XML).

    Raises
    ------
    TopologyError : naming the file, the place in it, what was found and what is allowed.
    """
    source, content = str(path), read_bytes(path, TopologyError, MAX_BYTES)
    name = Path(path).stem or "imported"
    kind = format_of(content) if file_format == "auto" else file_format
    if kind == "edges":
        return parse_edges(content, source, name=name, nodes=nodes)
    many = 1 if nodes is None else nodes
    if kind == "taccl":
        return parse_taccl(content, source, nodes=many, inter=inter)
    if kind in FORMATS:
        parse = parse_nvidia_smi if kind == "nvidia-smi" else parse_nccl_xml
        return parse(content, source, nodes=many, inter=inter, costs=costs, name=name)
    raise TopologyError(f"file_format is {kind!r}, needs 'auto' or one of {', '.join(FORMATS)}")


def format_of(content: bytes) -> Format:
    """Return the format of a file, detected by its beginning."""
    start = content[: 1 << 16].removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"{"):
        return "taccl"
    if start.startswith(b"<"):
        return "nccl-xml"
    return "nvidia-smi" if b"GPU0" in start else "edges"
