"""Fat trees: hosts below switches below switches, with thinner links the higher up."""

import math
from collections.abc import Sequence

import numpy as np

from headrace.errors import TopologyError
from headrace.topology.ports import by_direction, members
from headrace.topology.presets.boxes import MAX_LINKS
from headrace.topology.topology import (
    Link,
    SharedCapacity,
    Switch,
    Topology,
    beta_from_bytes_per_s,
)


def fat_tree(
    shape: tuple[int, ...],
    *,
    oversubscription: float = 1.0,
    host_bytes_per_s: float = 12.5e9,
    alpha_us: float = 1.7,
    hop_alpha_us: float = 0.5,
) -> Topology:
    """A tree of switches: shape[0] hosts below each leaf, shape[1] leaves below each spine, ...

    One rank a host. A switch's uplink carries the rate of all links below it over
    `oversubscription`, at every level; links of the topology run between any two ranks, and those
    that turn at level l (0 is the leaf) have alpha `alpha_us` + l * `hop_alpha_us`. Every host
    has a NIC and every switch below the top an uplink, each way, as shared capacities. The
    switches are assumed not to multicast: collective libraries do not use that of Ethernet or
    InfiniBand switches for data. All traffic uses the NICs.

    Raises
    ------
    TopologyError : if a side of the shape or a rate makes no sense.
    """
    _check(shape, oversubscription, host_bytes_per_s)
    ranks, widths = math.prod(shape), np.cumprod(shape)
    src, dst = np.repeat(np.arange(ranks), ranks), np.tile(np.arange(ranks), ranks)
    src, dst = src[src != dst], dst[src != dst]
    turn = np.zeros(len(src), np.int64)
    for width in widths[:-1]:
        turn += src // width != dst // width
    betas = [
        beta_from_bytes_per_s(host_bytes_per_s * float(below) / oversubscription**level)
        for level, below in enumerate((1, *widths[:-1]))
    ]
    slowest = np.maximum.accumulate(betas)
    links = tuple(
        Link(src=s, dst=d, alpha_us=alpha_us + t * hop_alpha_us, beta_us_per_mb=float(slowest[t]))
        for s, d, t in zip(src.tolist(), dst.tolist(), turn.tolist(), strict=True)
    )
    shared, switches = _ports_and_switches(src, dst, betas, (1, *map(int, widths)))
    return Topology(
        name=f"fat-tree-{'x'.join(map(str, shape))}",
        hosts=tuple(f"host{rank}" for rank in range(ranks)),
        rank_host=tuple(range(ranks)),
        links=links,
        shared=tuple(shared),
        switches=tuple(s for s in switches if s.links),
    )


def _check(shape: tuple[int, ...], oversubscription: float, host_bytes_per_s: float) -> None:
    if not shape or any(side < 1 for side in shape):
        raise TopologyError(f"shape is {shape}, needs at least one side and every side at least 1")
    if not oversubscription >= 1 or not math.isfinite(oversubscription):
        raise TopologyError(f"oversubscription is {oversubscription}, needs at least 1.0")
    if not host_bytes_per_s > 0:
        raise TopologyError(f"host_bytes_per_s is {host_bytes_per_s}, needs more than 0")
    ranks = math.prod(shape)
    if ranks * (ranks - 1) > MAX_LINKS:
        raise TopologyError(
            f"shape is {shape}: {ranks} ranks have {ranks * (ranks - 1)} links, needs at most "
            f"{MAX_LINKS}"
        )


def _ports_and_switches(
    src: np.ndarray, dst: np.ndarray, betas: Sequence[float], spans: Sequence[int]
) -> tuple[list[SharedCapacity], list[Switch]]:
    """Return the NICs and uplinks, each way, and the switches, from the hosts upwards.

    Parameters
    ----------
    src, dst : (links,) ranks.
    betas : us/MB of a NIC, and of an uplink of every level.
    spans : ranks below a host (1), and below a switch of every level.
    """
    ranks = spans[-1]
    shared: list[SharedCapacity] = []
    switches: list[Switch] = []
    for level, width in enumerate(spans):
        count = ranks // width
        crosses = np.flatnonzero(src // width != dst // width)
        out, into = src[crosses] // width, dst[crosses] // width
        what = "nic" if level == 0 else f"uplink{level - 1}"
        shared += [
            SharedCapacity(name=f"{what}-{direction}-{i}", links=mine, beta_us_per_mb=betas[level])
            for i, direction, mine in by_direction(out, into, count, crosses)
        ]
        if level == 0:
            continue
        child = spans[level - 1]
        turning = np.flatnonzero((src // width == dst // width) & (src // child != dst // child))
        passing = np.concatenate([src[turning] // width, out, into])
        links = members(passing, count, np.concatenate([turning, crosses, crosses]))
        switches += [
            Switch(name=f"switch{level - 1}-{i}", links=tuple(sorted(links[i])))
            for i in range(count)
        ]
    return shared, switches
