"""Update of the measured topology: hosts and uplinks that have become slower or faster.

Rates of connections are compared with those under the same plan before. All that pass a port (a
host's way out or in, a rack's uplink) change by the same factor when the port does, and others do
not; so a few ports and factors explain many connections. The factors are kept: the topology of the
profile stays the reference, and a port whose factor is back near one is as it was measured.

Connections also get faster because ranks wait less for each other, and all of a host's at once:
that is no evidence about its port. A port counts as faster only where a connection passes it at
more than its limit, and one whose limit was never reached (`SharedCapacity.at_least`) never does:
its bound rises to the rate seen.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.topology import BYTES_PER_MB, SharedCapacity, Topology
from headrace.topology.ports import by_direction

LEAST_CHANGE = 0.25
"""A port's rate has changed if by more than this fraction: connections scatter, and those that get
their data from slow ones slow down somewhat, too."""

LEAST_MORE = 0.5
"""The same for ports after the first: lesser changes may be effects of the first's."""

_MOST_FOUND = 3
_LEAST_GAIN = 0.2
_AS_MUCH = 0.05
_LEAST_EVIDENCE = 2
_SAME = 0.12
_LEAST_FACTOR, _MOST_FACTOR = 0.01, 4.0
_LEAST_SHARE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """Capacity that several links pass: a shared one of the topology, or a host's way out or in.

    Attributes
    ----------
    links : indices into the topology's links.
    shared : index into the topology's shared capacities; None: a host's, never measured as such.
    bytes_per_s : its limit, as far as known; of one that was never measured, its fastest link's.
    at_least : the limit was never reached.
    """

    name: str
    links: tuple[int, ...]
    bytes_per_s: float
    shared: int | None = None
    at_least: bool = False


def topology_ports(topology: Topology) -> tuple[Port, ...]:
    """Return the ports: every shared capacity, and every host's two ways."""
    ports = [
        Port(
            name=capacity.name,
            links=tuple(sorted(capacity.links)),
            bytes_per_s=1e6 * BYTES_PER_MB / capacity.beta_us_per_mb,
            shared=index,
            at_least=capacity.at_least,
        )
        for index, capacity in enumerate(topology.shared)
    ]
    covered = {port.links for port in ports}
    home, columns = np.array(topology.rank_host), topology.columns
    src, dst = home[columns.src], home[columns.dst]
    across = np.flatnonzero(src != dst)
    for host, direction, links in by_direction(
        src[across], dst[across], len(topology.hosts), across
    ):
        if links not in covered:
            covered.add(links)
            limit = 1e6 * BYTES_PER_MB / float(columns.beta_us_per_mb[list(links)].min())
            name = f"{topology.hosts[host]}-{direction}"
            ports.append(Port(name=name, links=links, bytes_per_s=limit))
    return tuple(ports)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRates:
    """Ratios of ports' rates now to those of the profile.

    Attributes
    ----------
    factors : by the port's name; those that are not here are as measured.
    """

    factors: Mapping[str, float] = field(default_factory=dict[str, float])

    def changed(self, factors: Mapping[str, float]) -> "PortRates":
        """Return the rates after ports have changed by `factors`.

        A slow port that gets faster counts as being as measured again, and so do those that got
        slow together with it, by the same factor. Its connections do not show how much faster: its
        load was moved away, and other ports are narrower now. Should it be less, then plans that
        rely on it turn out to be slow.
        """
        now = dict(self.factors)
        for name, factor in factors.items():
            before = self.factors.get(name, 1.0)
            if before < 1 < factor:
                now = {port: rate for port, rate in now.items() if rate != before}
                continue
            product = min(max(before * factor, _LEAST_FACTOR), _MOST_FACTOR)
            now.pop(name, None)
            if abs(math.log(product)) >= _SAME:
                # Four digits: two rounds that find the same must give equal factors.
                now[name] = float(f"{product:.4g}")
        return PortRates(factors=now)

    def apply(self, topology: Topology) -> Topology:
        """Return the profile's topology as it is now.

        A link that was as fast as its narrowest port changes with it; another is no faster than
        its ports are now. A host's way that has changed, and was never measured, becomes a shared
        capacity.
        """
        if not self.factors:
            return topology
        before = np.zeros(len(topology.links))
        after = np.zeros(len(topology.links))
        betas = topology.columns.beta_us_per_mb
        shared = list(topology.shared)
        for port in topology_ports(topology):
            factor = self.factors.get(port.name, 1.0)
            index, links = port.shared, list(port.links)
            beta = float(betas[links].min()) if index is None else shared[index].beta_us_per_mb
            now = SharedCapacity(name=port.name, links=port.links, beta_us_per_mb=beta / factor)
            if index is not None:
                shared[index] = replace(shared[index], beta_us_per_mb=beta / factor)
            elif factor != 1.0:
                shared.append(now)
            before[links] = np.maximum(before[links], beta)
            after[links] = np.maximum(after[links], now.beta_us_per_mb)
        limited = betas <= before * (1 + _SAME)
        changed = np.where(limited, betas / np.where(before > 0, before, 1.0) * after, betas)
        changed = np.where(limited, changed, np.maximum(betas, after))
        changed = np.where(before == after, betas, changed)
        links = tuple(
            replace(link, beta_us_per_mb=float(beta))
            for link, beta in zip(topology.links, changed.tolist(), strict=True)
        )
        return replace(topology, name=f"{topology.name}-updated", links=links, shared=tuple(shared))

    def described(self) -> str:
        """Return the differences from the profile in words."""
        if not self.factors:
            return "as measured"
        return ", ".join(
            f"{name} at {factor:z.0%}" for name, factor in sorted(self.factors.items())
        )


def changed_ports(
    topology: Topology,
    before: np.ndarray,
    now: np.ndarray,
    weight: np.ndarray | None = None,
    *,
    slower: bool | None = None,
    recovering: Collection[str] = (),
) -> dict[str, float]:
    """Return the ports that have changed and by what factor; empty if none has.

    Greedy in least absolute deviations of logarithms: the port and factor that explain most of
    the connections' changes, then the next for the other connections, above a least gain.

    Parameters
    ----------
    before, now : (n, n) effective rates from i to j under the same plan, bytes/s; nan: not seen.
    weight : (n, n) weights (bytes sent); None: all alike.
    slower : whether ports got slower, or faster; None: as the one that explains most. One cause
        has one direction; what deviates the other way is its consequence, or noise.
    recovering : names of ports that may get faster all the same, and need not pass their limit.
    """
    left, passed, weights = _changes(topology, before, now, weight)
    factors: dict[str, float] = {}
    first = 0.0
    for _ in range(_MOST_FOUND):
        total = float(weights @ np.abs(left))
        best: tuple[float, float, tuple[Port, ...]] = (0.0, 0.0, ())
        for suspects in _suspects(topology):
            if not any(port.name in factors for port in suspects):
                gain, step = _gain(_links(suspects), left, weights)
                recovers = step > 0 and all(port.name in recovering for port in suspects)
                if slower is not None and slower != (step < 0) and not recovers:
                    continue
                if step > 0 and not recovers:
                    step = min(step, _proven(suspects, passed))
                    if step < math.log1p(LEAST_CHANGE):
                        continue
                # of equal explanations, the one with fewer ports comes first
                best = max(best, (gain, step, suspects), key=lambda candidate: candidate[0])
        gain, step, suspects = best
        needed = max(_LEAST_GAIN * total, _AS_MUCH * first)
        limit = LEAST_CHANGE if not factors else LEAST_MORE
        if not suspects or gain < needed or abs(step) < math.log1p(limit):
            break
        if factors and (weights[_links(suspects)] > 0).sum() < _LEAST_EVIDENCE:
            break
        first = first or gain
        slower = step < 0 if slower is None else slower
        factors.update({port.name: math.exp(step) for port in suspects})
        # the narrowest port decides: these links are no evidence about others that they pass
        weights[_links(suspects)] = 0.0
    return factors


def _changes(
    topology: Topology, before: np.ndarray, now: np.ndarray, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return by link the logarithm of its rate's change, the rate now, and the weight.

    All are 0 for links whose change was not seen.
    """
    src, dst = topology.columns.src, topology.columns.dst
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(now[src, dst] / before[src, dst])
    weights = np.ones(len(src)) if weight is None else weight[src, dst].astype(np.float64)
    # a connection that moves next to nothing shows latency more than rates
    seen = np.isfinite(ratio) & (weights > _LEAST_SHARE * weights.max(initial=0.0))
    return (
        np.where(seen, ratio, 0.0),
        np.where(seen, now[src, dst], 0.0),
        np.where(seen, weights, 0.0),
    )


def _suspects(topology: Topology) -> list[tuple[Port, ...]]:
    """Return the sets of ports that may change at once: one, or both ways of a host or uplink."""
    alone = topology_ports(topology)
    by_links = {port.links: port for port in alone}
    index = topology.link_index
    pairs: list[tuple[Port, ...]] = []
    for port in alone:
        ends = [(topology.links[link].dst, topology.links[link].src) for link in port.links]
        if all(end in index for end in ends):
            back = by_links.get(tuple(sorted(index[end] for end in ends)))
            if back is not None and port.links < back.links:
                pairs.append((port, back))
    return [*((port,) for port in alone), *pairs]


def _proven(suspects: tuple[Port, ...], passed: np.ndarray) -> float:
    """Return the logarithm of the least rate over limit that any of these ports passes.

    -inf for a lower bound.
    `passed` is by link, bytes/s.
    """
    return min(
        -math.inf
        if port.at_least
        else math.log(max(passed[list(port.links)].max(), 1.0) / port.bytes_per_s)
        for port in suspects
    )


def raised(topology: Topology, rate_bytes_per_s: np.ndarray, weight: np.ndarray) -> Topology:
    """Return `topology` with lower bounds raised to what connections passed through them.

    Parameters
    ----------
    rate_bytes_per_s, weight : as `now` and `weight` of `changed_ports`.
    """
    columns = topology.columns
    weights = weight[columns.src, columns.dst]
    rates = np.nan_to_num(rate_bytes_per_s[columns.src, columns.dst])
    rates = np.where(weights > _LEAST_SHARE * weights.max(initial=0.0), rates, 0.0)
    shared = tuple(
        replace(s, beta_us_per_mb=min(s.beta_us_per_mb, _beta(rates[list(s.links)].max())))
        if s.at_least and s.links
        else s
        for s in topology.shared
    )
    return topology if shared == topology.shared else replace(topology, shared=shared)


def _beta(bytes_per_s: float) -> float:
    return float(f"{1e6 * BYTES_PER_MB / bytes_per_s:.4g}") if bytes_per_s > 0 else math.inf


def _links(suspects: tuple[Port, ...]) -> np.ndarray:
    return np.concatenate([np.array(port.links) for port in suspects])


def _gain(links: np.ndarray, left: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return the deviation explained if these links changed by their median, and that median."""
    step = _weighted_median(left[links], weights[links])
    deviation = np.abs(left[links]) - np.abs(left[links] - step)
    return float(weights[links] @ deviation), step


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    total = weights.sum()
    if total <= 0:
        return 0.0
    order = np.argsort(values, kind="stable")
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), total / 2)])


def bandwidth(topology: Topology, measured: np.ndarray | None = None) -> np.ndarray:
    """Return (n, n) bytes/s from i to j of a flow alone; 0 on the diagonal.

    Parameters
    ----------
    measured : (n, n) bytes/s, used instead where finite and above 0: a connection that carried
        nothing while others were measured is not slow.
    """
    columns = topology.columns
    beta = columns.beta_us_per_mb.copy()
    for capacity in topology.shared:
        links = list(capacity.links)
        beta[links] = np.maximum(beta[links], capacity.beta_us_per_mb)
    bytes_per_s = np.zeros((topology.ranks, topology.ranks))
    bytes_per_s[columns.src, columns.dst] = 1e6 * BYTES_PER_MB / beta
    if measured is None:
        return bytes_per_s
    return np.where(np.isfinite(measured) & (measured > 0), measured, bytes_per_s)
