"""Plain edge lists: one directed link a line, separated by commas or spaces.

::

    # a comment
    src dst alpha_us beta_us_per_mb
    0   1   0.7      46
    1   0   0.7      25GB/s

The line of names may be left out; its last name may be ``bytes_per_s`` or ``gb_per_s`` instead. The
last column may have rates with units (B/s, kB/s, MB/s, GB/s, KiB/s, MiB/s, GiB/s, Mb/s or Gb/s).
"""

import re

from headrace.errors import TopologyError
from headrace.files import decoded
from headrace.topology.importers.reading import finite
from headrace.topology.topology import Link, Topology, beta_from_bytes_per_s

MAX_EDGES = 1_000_000
MAX_RANK = 65_535

_NAMES = ("src", "dst", "alpha_us")
_COSTS = {"beta_us_per_mb": None, "bytes_per_s": 1.0, "gb_per_s": 1e9}
_UNITS = {
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "Mb": 1e6 / 8,
    "Gb": 1e9 / 8,
}
_RATE = re.compile(r"([0-9.eE+-]{1,40})([A-Za-z]{1,3})/s")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")


def parse_edges(content: bytes, source: str, *, name: str, nodes: int | None = None) -> Topology:
    """Return the topology of an edge list; without `nodes` every rank is a host of its own.

    With `nodes` the ranks are divided evenly among as many hosts, in order. Edge lists have no
    shared capacities, NICs or switches: only links, and no multicast.

    Raises
    ------
    TopologyError : naming the file, the line, the field, what was found and what is allowed.
    """
    unit: float | None = None
    links: list[Link] = []
    lines: dict[tuple[int, int], int] = {}
    for number, line in enumerate(decoded(content, source, TopologyError).splitlines(), 1):
        cells = line.partition("#")[0].replace(",", " ").split()
        if not cells:
            continue
        where = f"{source}:{number}"
        if not links and not lines and cells[0].lower() == _NAMES[0]:
            unit = _header(cells, where)
            continue
        link = _link(cells, unit, where)
        ends = (link.src, link.dst)
        if ends in lines:
            raise TopologyError(
                f"{where}: repeats {link.src} -> {link.dst} of line {lines[ends]}, needs each once"
            )
        if len(links) >= MAX_EDGES:
            raise TopologyError(f"{where}: has more than {MAX_EDGES} edges")
        lines[ends] = number
        links.append(link)
    if not links:
        raise TopologyError(
            f"{source}: has no edges, needs lines 'src dst alpha_us beta_us_per_mb'"
        )
    ranks = _ranks(links, source)
    hosts = ranks if nodes is None else nodes
    if hosts < 1 or ranks % hosts:
        raise TopologyError(f"{source}: nodes is {hosts}, needs a divisor of the {ranks} ranks")
    try:
        return Topology(
            name=name,
            hosts=tuple(f"host{i}" for i in range(hosts)),
            rank_host=tuple(rank // (ranks // hosts) for rank in range(ranks)),
            links=tuple(links),
        )
    except TopologyError as error:  # a cost is beyond all networks'
        raise TopologyError(f"{source}: {error}") from error


def _header(cells: list[str], where: str) -> float | None:
    names = tuple(cell.lower() for cell in cells)
    if names[:3] != _NAMES or len(names) != 4 or names[3] not in _COSTS:
        raise TopologyError(
            f"{where}: columns are {' '.join(cells)!r}, needs 'src dst alpha_us' and one of "
            f"{', '.join(_COSTS)}"
        )
    return _COSTS[names[3]]


def _link(cells: list[str], unit: float | None, where: str) -> Link:
    if len(cells) != 4:
        raise TopologyError(
            f"{where}: has {len(cells)} fields, needs 4: src dst alpha_us beta_us_per_mb"
        )
    src, dst = _rank(cells[0], f"{where}: src"), _rank(cells[1], f"{where}: dst")
    if src == dst:
        raise TopologyError(f"{where}: joins rank {src} to itself, needs two ranks")
    alpha = finite(_number(cells[2], f"{where}: alpha_us"), f"{where}: alpha_us", zero=True)
    return Link(src=src, dst=dst, alpha_us=alpha, beta_us_per_mb=_beta(cells[3], unit, where))


def _beta(cell: str, unit: float | None, where: str) -> float:
    rate = _RATE.fullmatch(cell)
    if rate:
        if rate[2] not in _UNITS:
            raise TopologyError(f"{where}: unit {rate[2]!r} is none of {', '.join(_UNITS)}")
        unit, cell = _UNITS[rate[2]], rate[1]
    value = finite(_number(cell, f"{where}: cost"), f"{where}: cost")
    beta = value if unit is None else beta_from_bytes_per_s(value * unit)
    return finite(beta, f"{where}: beta_us_per_mb")


def _rank(cell: str, where: str) -> int:
    if not (cell.isascii() and cell.isdigit() and len(cell) <= 9) or int(cell) > MAX_RANK:
        raise TopologyError(f"{where} is {cell[:40]!r}, needs a rank of 0 to {MAX_RANK}")
    return int(cell)


def _number(cell: str, where: str) -> float:
    if len(cell) > 40 or not _NUMBER.fullmatch(cell):
        raise TopologyError(f"{where} is {cell[:40]!r}, needs a number")
    return float(cell)


def _ranks(links: list[Link], source: str) -> int:
    there = {end for link in links for end in (link.src, link.dst)}
    missing = next((rank for rank in range(len(there)) if rank not in there), None)
    if missing is not None:
        raise TopologyError(
            f"{source}: rank {missing} is in no edge though rank {max(there)} is, needs ranks "
            "counted from 0 without holes"
        )
    return len(there)
