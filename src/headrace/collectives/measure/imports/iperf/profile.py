"""Profile from the results of ``iperf3 -J``.

Single runs cannot show shared capacities. Two assumptions are recorded in the provenance: a host's
port is as fast as its fastest run; and where every run out of a group of hosts is clearly slower
than those inside it, the group has a shared uplink.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

import headrace
from headrace.collectives.measure.assemble import ends, link
from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.imports.iperf.read import IperfRun, read_run
from headrace.collectives.measure.probes.recorder import Site, no_samples
from headrace.collectives.measure.probes.round_robin import Pair
from headrace.collectives.measure.probes.trials import Capacity, nic, uplink
from headrace.collectives.measure.racks.linkage import group_hosts
from headrace.collectives.measure.racks.partition import Grouping
from headrace.errors import InputError
from headrace.topology import Topology, beta_from_bytes_per_s
from headrace.topology.profile import Profile

_CLEARLY_SLOWER = 0.75
_MOST_SHOWN = 4

NamePair = tuple[str, str]


def profile_from_iperf(
    files: Sequence[str | Path], *, round_trips: Mapping[NamePair, float] | None = None
) -> Profile:
    """Return the profile of the hosts that `files` are about, with one rank for each.

    Parameters
    ----------
    files : of every pair of hosts at least one; hosts are ranks in the order they appear in.
        Of several runs of a pair the fastest counts. Where only one direction was run, the other
        is assumed equal.
    round_trips : (host, host) -> us, by name; they override those in the files.

    Raises
    ------
    InputError : naming the file and the field, or the pairs of hosts without a run or a round
        trip.
    """
    if not files:
        raise InputError("there are no files, needs at least one result of iperf3 -J")
    runs = [read_run(file) for file in files]
    hosts = _hosts(runs, round_trips or {})
    groups = group_hosts(hosts.bytes_per_s)
    site = Site.of(hosts.names)
    assumed = [*_ports(site, hosts.bytes_per_s), *_uplinks(groups, hosts.bytes_per_s)]
    topology = _topology(hosts, site, assumed)
    begun = min((run.at for run in runs), default=0.0)
    ended = max(run.at + run.took_s for run in runs)
    at, unknown = tuple(zip(*hosts.pairs, strict=True)), np.full(len(hosts.pairs), np.nan)
    return Profile(
        topology=topology,
        groups=groups,
        samples=no_samples(),
        fits={
            **ends(hosts.pairs),
            "alpha_us": topology.columns.alpha_us,
            "beta_us_per_mb": topology.columns.beta_us_per_mb,
            "alpha_variance": unknown,
            "beta_variance": unknown,
        },
        pairs={
            **ends(hosts.pairs),
            "bytes_per_s": hosts.bytes_per_s[at],
            "median_rtt_us": unknown,
            "min_rtt_us": unknown,
            "kernel_rtt_us": hosts.rtt_us[at],
        },
        measured_at=begun,
        took_s=ended - begun,
        valid_for_s=ProbeEffort().valid_for_s,
        provenance={
            "made_by": f"headrace {headrace.__version__}",
            "from": "iperf3",
            "files": [Path(file).name for file in files],
            "assumed": [f"{c.kind}-{c.direction}-{c.name}" for c in assumed],
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Hosts:
    """Hosts, and figures of the runs between them.

    Attributes
    ----------
    bytes_per_s, rtt_us : (hosts, hosts), from row to column.
    """

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    bytes_per_s: np.ndarray
    rtt_us: np.ndarray

    @property
    def pairs(self) -> list[Pair]:
        """Every host with every other, by their numbers."""
        return list(permutations(range(len(self.names)), 2))


def _hosts(runs: Sequence[IperfRun], round_trips: Mapping[NamePair, float]) -> _Hosts:
    names = list(dict.fromkeys(host for run in runs for host in (run.client, run.server)))
    addresses = _addresses(runs)
    return _Hosts(
        names=tuple(names),
        addresses=tuple(addresses[name] for name in names),
        bytes_per_s=_matrix(names, _fastest(runs), "is no run of iperf3"),
        rtt_us=_matrix(
            names,
            _least_round_trips(runs) | _known(names, round_trips),
            "is no round trip; give those of ping in a file",
        ),
    )


def _topology(hosts: _Hosts, site: Site, shared: Sequence[Capacity]) -> Topology:
    links = tuple(
        link(*pair, hosts.rtt_us[pair] / 2, beta_from_bytes_per_s(hosts.bytes_per_s[pair]))
        for pair in hosts.pairs
    )
    index = {pair: i for i, pair in enumerate(hosts.pairs)}
    return Topology(
        name=f"iperf3-{len(hosts.names)}-hosts",
        hosts=hosts.names,
        rank_host=site.rank_host,
        links=links,
        shared=tuple(capacity.over(site, index) for capacity in shared),
        addresses=hosts.addresses,
    )


def _addresses(runs: Iterable[IperfRun]) -> dict[str, str]:
    """Return name -> address; a host has one name in all files."""
    addresses: dict[str, str] = {}
    names: dict[str, str] = {}
    for run in runs:
        for name, address in zip((run.client, run.server), run.addresses, strict=True):
            if addresses.setdefault(name, address) != address:
                raise InputError(
                    f"host {name!r} has address {addresses[name]} in one file and {address} in "
                    "another, needs one"
                )
            if names.setdefault(address, name) != name:
                raise InputError(
                    f"address {address} is host {names[address]!r} in one file and {name!r} in "
                    "another: name all files CLIENT-to-SERVER.json, or none"
                )
    return addresses


def _fastest(runs: Iterable[IperfRun]) -> dict[NamePair, float]:
    """Return the bytes per second of every direction that was run; else of the other one."""
    fastest: dict[NamePair, float] = {}
    for run in runs:
        for pair, rate in run.bytes_per_s.items():
            fastest[pair] = max(rate, fastest.get(pair, 0.0))
    return {(b, a): rate for (a, b), rate in fastest.items()} | fastest


def _least_round_trips(runs: Iterable[IperfRun]) -> dict[NamePair, float]:
    least_us: dict[NamePair, float] = {}
    for run in runs:
        for pair in ((run.client, run.server), (run.server, run.client)):
            if run.rtt_us is not None:
                least_us[pair] = min(run.rtt_us, least_us.get(pair, run.rtt_us))
    return least_us


def _known(hosts: Sequence[str], round_trips: Mapping[NamePair, float]) -> dict[NamePair, float]:
    """Return given round trips both ways."""
    for pair in round_trips:
        for host in pair:
            if host not in hosts:
                raise InputError(
                    f"round trip of {pair[0]!r} and {pair[1]!r}: no file is about {host!r}, needs "
                    f"one of {', '.join(hosts)}"
                )
    return {(b, a): time_us for (a, b), time_us in round_trips.items()} | dict(round_trips)


def _matrix(hosts: Sequence[str], by_pair: Mapping[NamePair, float], problem: str) -> np.ndarray:
    """Return (hosts, hosts) from row to column; 1 on the diagonal."""
    missing = [(a, b) for i, a in enumerate(hosts) for b in hosts[:i] if (a, b) not in by_pair]
    if missing:
        shown = ", ".join(f"{b} and {a}" for a, b in missing[:_MOST_SHOWN])
        more = f" and {len(missing) - _MOST_SHOWN} other pairs" if missing[_MOST_SHOWN:] else ""
        raise InputError(f"there {problem} for {shown}{more}: every pair of hosts needs one")
    return np.array([[1.0 if a == b else by_pair[a, b] for b in hosts] for a in hosts])


def _ports(site: Site, bandwidth: np.ndarray) -> list[Capacity]:
    """Return every host's port, as fast as the fastest run over it."""
    alone = np.where(np.eye(len(bandwidth), dtype=bool), 0.0, bandwidth)
    return [
        nic(site, host, direction, beta_from_bytes_per_s(float(rates[host])))
        for host in range(len(bandwidth))
        for direction, rates in (("in", alone.max(axis=0)), ("out", alone.max(axis=1)))
        if len(bandwidth) > 2  # two hosts have a single flow per port
    ]


def _uplinks(groups: Grouping, bandwidth: np.ndarray) -> list[Capacity]:
    """Return uplinks of groups out of which every run is clearly slower than those inside."""
    uplinks: list[Capacity] = []
    for index, group in enumerate(groups):
        mine = list(group)
        others = [host for host in range(len(bandwidth)) if host not in group]
        if len(mine) < 2 or not others:
            continue
        inside = bandwidth[np.ix_(mine, mine)][~np.eye(len(mine), dtype=bool)].min()
        for direction, ways in (("in", np.ix_(others, mine)), ("out", np.ix_(mine, others))):
            fastest = float(bandwidth[ways].max())
            if fastest < _CLEARLY_SLOWER * inside:
                uplinks.append(uplink(groups, index, direction, beta_from_bytes_per_s(fastest)))
    return uplinks
