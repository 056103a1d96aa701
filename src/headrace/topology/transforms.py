"""Pure functions from topologies to topologies: other costs, other directions, fewer links."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from headrace.errors import TopologyError
from headrace.topology.topology import Topology

_TRANSPOSED = "-transposed"


def without_local_alpha(topology: Topology) -> Topology:
    """Return `topology` with alpha 0 on the links inside hosts: the table model's graph."""
    host = topology.rank_host
    links = tuple(
        replace(link, alpha_us=0.0) if host[link.src] == host[link.dst] else link
        for link in topology.links
    )
    if links == topology.links:
        return topology
    return replace(topology, name=f"{topology.name}-no-local-alpha", links=links)


def transposed(topology: Topology) -> Topology:
    """Return `topology` with every link reversed.

    Links keep their indices, so shared capacities and switches keep their members (and names,
    though `out` is then `in`). An involution.
    """
    name = topology.name
    turned = name.removesuffix(_TRANSPOSED) if name.endswith(_TRANSPOSED) else name + _TRANSPOSED
    links = tuple(replace(link, src=link.dst, dst=link.src) for link in topology.links)
    return replace(topology, name=turned, links=links)


def subgraph(topology: Topology, keep_links: Iterable[int], name: str | None = None) -> Topology:
    """Return `topology` with only the links of these indices, in their old order.

    Link j of the result is link ``sorted(set(keep_links))[j]`` of `topology`. Shared capacities
    and switches keep their remaining links; empty ones are dropped.

    Raises
    ------
    TopologyError : if an index is none of a link.
    """
    links = sorted({int(link) for link in keep_links})
    total = len(topology.links)
    if links and not 0 <= links[0] <= links[-1] < total:
        wrong = links[0] if links[0] < 0 else links[-1]
        raise TopologyError(f"keep_links has {wrong}, needs 0 to {total - 1}")
    return replace(
        topology,
        name=name or f"{topology.name}-{len(links)}-links",
        links=tuple(topology.links[link] for link in links),
        **_members(topology, links),
    )


def restricted(topology: Topology, ranks: Sequence[int], name: str | None = None) -> Topology:
    """Return the subgraph that `ranks` induce; rank k of the result is ``ranks[k]``.

    Hosts are sorted by their first rank, links by their ends. Shared capacities and switches keep
    their remaining links; empty ones are dropped.
    """
    place = {rank: k for k, rank in enumerate(ranks)}
    homes = list(dict.fromkeys(topology.rank_host[rank] for rank in ranks))
    ends = sorted(
        (place[link.src], place[link.dst], index)
        for index, link in enumerate(topology.links)
        if link.src in place and link.dst in place
    )
    return replace(
        topology,
        name=name or topology.name,
        hosts=tuple(topology.hosts[home] for home in homes),
        rank_host=tuple(homes.index(topology.rank_host[rank]) for rank in ranks),
        links=tuple(replace(topology.links[i], src=src, dst=dst) for src, dst, i in ends),
        addresses=tuple(topology.addresses[home] for home in homes) if topology.addresses else (),
        **_members(topology, [index for _, _, index in ends]),
    )


def _members(topology: Topology, subset: Sequence[int]) -> dict[str, Any]:
    """Return the fields `shared` and `switches` with the links of a subset, renumbered."""
    place = {link: j for j, link in enumerate(subset)}

    def left(links: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(place[link] for link in links if link in place))

    return {
        field: tuple(replace(s, links=left(s.links)) for s in members if left(s.links))
        for field, members in (("shared", topology.shared), ("switches", topology.switches))
    }
