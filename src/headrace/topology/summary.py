"""One-line description of a measured network."""

from collections import Counter

import numpy as np

from headrace.topology import Topology
from headrace.topology.profile import Profile

_SLOW = 0.7  # of the usual rate of hosts
_MOST_NAMED = 3
_EVEN = 1.15


def in_words(profile: Profile) -> str:
    """Return, say, "2 racks of 4 hosts, uplinks 4:1 (100 Mbit/s), hosts 400 Mbit/s"."""
    topology = profile.topology
    speeds = _host_speeds(topology)
    comparable = len(speeds) > 1 and bool(np.isfinite(speeds).all())
    usual = float(np.median(speeds)) if comparable else 0.0
    slow = {topology.hosts[h]: speeds[h] / usual for h in range(len(speeds)) if comparable}
    slow = {name: share for name, share in slow.items() if share < _SLOW}
    # a host that is slow to all is a group of its own; a slow host and one alone behind a slow
    # uplink cannot be told apart, so where there are racks it counts as one
    racks = [
        names for names in profile.host_groups if len(names) > 1 or slow.keys().isdisjoint(names)
    ]
    if len(racks) > 1:
        racks = list(profile.host_groups)
        slow = {name: share for name, share in slow.items() if (name,) not in racks}
    parts = [_racks([len(names) for names in racks], len(topology.hosts))]
    if len(racks) > 1 and (uplinks := _uplinks(profile, speeds)):
        parts.append(uplinks)
    if comparable:
        parts.append(f"hosts {_mbit(usual)}")
        named = [f"{name} at {share:z.0%} of that" for name, share in slow.items()]
        parts += named[:_MOST_NAMED]
        if len(named) > _MOST_NAMED:
            parts.append(f"and {len(named) - _MOST_NAMED} more slow ones")
    return ", ".join(parts)


def _racks(sizes: list[int], hosts: int) -> str:
    if len(sizes) < 2:
        return f"{hosts} hosts and no racks among them"
    if len(set(sizes)) == 1:
        return f"{len(sizes)} racks of {sizes[0]} host{'s' * (sizes[0] > 1)}"
    counted = sorted(Counter(sizes).items(), reverse=True)
    return f"{len(sizes)} racks of " + " + ".join(
        f"{size}" if count == 1 else f"{count}x{size}" for size, count in counted
    )


def _uplinks(profile: Profile, speeds: np.ndarray) -> str:
    """Return the uplinks' rates and oversubscription: rates of hosts over that of their uplink."""
    topology = profile.topology
    home, rates, ratios = topology.rank_host, list[float](), list[float]()
    bound = False
    for group in profile.groups:
        members = set(group)
        out = {
            index
            for index, link in enumerate(topology.links)
            if link.src in members and link.dst not in members
        }
        over = [(s.beta_us_per_mb, s.at_least) for s in topology.shared if set(s.links) == out]
        if over and len({home[rank] for rank in group}) > 1:
            beta, at_least = max(over)
            bound = bound or at_least
            rates.append(1e12 / beta)
            ratios.append(sum(speeds[host] for host in {home[r] for r in group}) / rates[-1])
    if not rates:
        return ""
    span = _span([_in_mbit(rate) for rate in rates], " Mbit/s")
    return f"uplinks {_span(ratios, ':1')} ({'at least ' * bound}{span})"


def _host_speeds(topology: Topology) -> np.ndarray:
    """Return the bytes per second of every host's best link to another."""
    best = np.full(len(topology.hosts), np.nan)
    for link in topology.links:
        src, dst = topology.rank_host[link.src], topology.rank_host[link.dst]
        if src != dst and link.beta_us_per_mb > 0:
            best[src] = np.nanmax([best[src], 1e12 / link.beta_us_per_mb])
    return best


def _span(values: list[float], unit: str) -> str:
    low, high = min(values), max(values)
    if high <= _EVEN * low:
        return f"{float(np.median(values)):.3g}{unit}"
    return f"{low:.3g} to {high:.3g}{unit}"


def _in_mbit(bytes_per_s: float) -> float:
    return bytes_per_s * 8 / 1e6


def _mbit(bytes_per_s: float) -> str:
    return f"{_in_mbit(bytes_per_s):.3g} Mbit/s"
