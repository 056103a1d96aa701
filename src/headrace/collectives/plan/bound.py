"""Lower bounds: what no schedule can beat on a topology, by flows, volume and shortest paths.

They hold for programs that move and combine bytes position by position (no coding across
positions of a vector), where b bytes occupy a link of beta for b * beta and arrive alpha later,
and a shared capacity caps the sum of its links' rates.

**Flow.** Byte k of a contribution that must get from s to t crosses a chain of sends from s to t,
alone or combined with others. Over all k these chains are a flow, so ``T >= bytes / (largest flow
from s to t)``. Without shared capacities that flow equals the smallest cut between them; over all
pairs this is M / min(capacity out of S, capacity into S) over all cuts S. With them it is at most
what could cross the cut, so the bound is at least as strong. Where *different* bytes go to one
rank (allgather, gather), leave one rank (reduce_scatter, scatter), or both (all_to_all), the
flows must fit at once.

**Volume.** Combining N contributions of a byte takes N-1 sends before the first rank has the
total, and each of the N-1 others must receive once more: 2(N-1)M bytes for an allreduce. All
links together carry at most the *egress*, the largest feasible sum of rates.

**Latency.** Bytes take at least the shortest path in alpha.

How alpha adds to flow and volume, and why a solver's error cannot break a bound, is argued in
`flow`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headrace import fields
from headrace.collectives.demand import Collective, Demand
from headrace.errors import ArtifactError, InputError, TopologyError
from headrace.topology import BYTES_PER_MB, Topology

if TYPE_CHECKING:
    from headrace.collectives.plan.flow import Flows, Rate

_ALL_PAIRS_RANKS = 12
"""Up to so many ranks allreduce tries every pair, beyond only those with rank 0.

Every cut parts rank 0 from someone, so without shared capacities rank 0 alone finds the smallest;
with them another pair may give a stronger bound, at n/2 times the work.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One reason why it takes so long: ``us = mb * us_per_mb + alpha_us``.

    Attributes
    ----------
    name : "flow 0 -> 3", "flow into 2", "volume", "latency 1 -> 2", ...
    mb : what has to pass, in MB.
    us_per_mb : one over the rate at which it can pass.
    alpha_us : what alpha adds.
    """

    name: str
    mb: float
    us_per_mb: float
    alpha_us: float

    @property
    def bandwidth_us(self) -> float:
        """The term without alpha."""
        return self.mb * self.us_per_mb

    @property
    def us(self) -> float:
        """The term."""
        return self.bandwidth_us + self.alpha_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """No schedule takes less than `total_us` on the topology with this digest.

    Attributes
    ----------
    total_us : the largest term.
    bandwidth_us : the largest term without alpha (the payload limit).
    latency_us : the largest shortest path in alpha that some byte must take.
    formula : what was computed, in words.
    terms : the largest term of each kind.
    """

    collective: Collective
    total_bytes: int
    total_us: float
    bandwidth_us: float
    latency_us: float
    formula: str
    terms: tuple[Term, ...]
    topology_digest: str

    def to_head(self) -> dict[str, Any]:
        """Return the JSON form: what `from_head` reads."""
        head = asdict(self)
        return {**head, "collective": self.collective.value, "terms": list(head["terms"])}

    @classmethod
    def from_head(cls, head: Mapping[str, Any], source: str = "bound") -> "Bound":
        """Parse the JSON form.

        Raises
        ------
        ArtifactError : if a field is missing or mistyped.
        """
        try:
            return cls(
                collective=Collective(head["collective"]),
                total_bytes=fields.integer(head["total_bytes"]),
                total_us=fields.number(head["total_us"]),
                bandwidth_us=fields.number(head["bandwidth_us"]),
                latency_us=fields.number(head["latency_us"]),
                formula=fields.text(head["formula"]),
                terms=tuple(_term(fields.table(row)) for row in fields.items(head["terms"])),
                topology_digest=fields.text(head["topology_digest"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(
                f"{source}: needs collective, total_bytes, total_us, bandwidth_us, latency_us, "
                f"formula, terms and topology_digest: {error!r}"
            ) from error


def _term(row: Mapping[str, Any]) -> Term:
    numbers = {name: fields.number(row[name]) for name in ("mb", "us_per_mb", "alpha_us")}
    return Term(name=fields.text(row["name"]), **numbers)


_CUT = "max over pairs (s, t) of M / flow(s -> t) + alpha"
_FORMULAS = {
    Collective.ALLREDUCE: f"{_CUT}; 2(N-1) M / egress + alpha; largest distance in alpha",
    Collective.BROADCAST: "max over t of M / flow(root -> t) + alpha; (N-1) M / egress + alpha; "
    "largest distance in alpha from the root",
    Collective.REDUCE: "max over s of M / flow(s -> root) + alpha; (N-1) M / egress + alpha; "
    "largest distance in alpha to the root",
    Collective.ALLGATHER: "max over t of (M/N) / flow(each -> t at once) + alpha; "
    "(N-1) M / egress + alpha; largest distance in alpha",
    Collective.REDUCE_SCATTER: "max over s of (M/N) / flow(s -> each at once) + alpha; "
    "(N-1) M / egress + alpha; largest distance in alpha",
    Collective.GATHER: "(M/N) / flow(each -> root at once) + alpha; "
    "(N-1)/N M / egress + alpha; largest distance in alpha to the root",
    Collective.SCATTER: "(M/N) / flow(root -> each at once) + alpha; "
    "(N-1)/N M / egress + alpha; largest distance in alpha from the root",
    Collective.ALL_TO_ALL: "(M/N) / flow(each -> each at once) + alpha; "
    "(N-1) M / egress + alpha; largest distance in alpha",
}


def lower_bound(topology: Topology, demand: Demand, total_bytes: int) -> Bound:
    """Return the bound on `demand`'s collective moving `total_bytes` (see `Demand.chunk_bytes`).

    The flows do not depend on the bytes; they are kept for the topologies seen last.

    Raises
    ------
    InputError : for a negative size.
    TopologyError : for another number of ranks, or a pair that cannot reach each other.
    """
    if total_bytes < 0:
        raise InputError(f"total_bytes is {total_bytes}, needs at least 0")
    if demand.ranks != topology.ranks:
        raise TopologyError(
            f"topology '{topology.name}' has {topology.ranks} ranks, the collective "
            f"{demand.ranks}: needs the same number"
        )
    kinds, digest = _kinds(topology, demand.collective, demand.root)
    total_mb = total_bytes / BYTES_PER_MB
    terms = [[term.of(total_mb) for term in kind] for kind in kinds]
    return Bound(
        collective=demand.collective,
        total_bytes=total_bytes,
        total_us=max((term.us for kind in terms for term in kind), default=0.0),
        bandwidth_us=max((term.bandwidth_us for kind in terms for term in kind), default=0.0),
        latency_us=max((term.us for kind in terms[-1:] for term in kind), default=0.0),
        formula=_FORMULAS[demand.collective],
        terms=tuple(max(kind, key=lambda term: term.us) for kind in terms),
        topology_digest=digest,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """A term before the size is known: `share` of it has to pass at `rate`."""

    name: str
    share: float
    rate: "Rate"

    def of(self, total_mb: float) -> Term:
        return Term(
            name=self.name,
            mb=self.share * total_mb,
            us_per_mb=self.rate.us_per_mb,
            alpha_us=self.rate.alpha_us,
        )


@lru_cache(maxsize=32)
def _flows(topology: Topology) -> "tuple[Flows, str]":
    # Only who solves loads SciPy: a command line that shows a plan starts without.
    from headrace.collectives.plan.flow import Flows

    return Flows(topology), topology.digest


@lru_cache(maxsize=256)
def _kinds(
    topology: Topology, collective: Collective, root: int
) -> tuple[tuple[tuple[_Share, ...], ...], str]:
    """The terms by kind (flow, volume, latency), and the topology's digest."""
    flows, digest = _flows(topology)
    n = topology.ranks
    if n == 1:
        return (), digest
    pairs = _pairs(n, collective, root)
    flows.require(pairs, collective.value)
    share = _flow_share(n, collective)
    flow = tuple(
        _Share(name=f"flow {name}", share=share, rate=flows.rate(together))
        for name, together in _together(n, collective, pairs)
    )
    volume = _Share(name="volume", share=_volume_share(n, collective), rate=flows.egress())
    latency = tuple(
        _Share(name=f"latency {s} -> {t}", share=0.0, rate=flows.latency(s, t)) for s, t in pairs
    )
    return (flow, (volume,), latency), digest


_Pairs = list[tuple[int, int]]


def _pairs(n: int, collective: Collective, root: int) -> _Pairs:
    """Every (s, t) where something of s must reach t."""
    everyone = range(n)
    match collective:
        case Collective.BROADCAST | Collective.SCATTER:
            return [(root, t) for t in everyone if t != root]
        case Collective.REDUCE | Collective.GATHER:
            return [(s, root) for s in everyone if s != root]
        case _:
            return [(s, t) for s in everyone for t in everyone if s != t]


def _together(n: int, collective: Collective, pairs: _Pairs) -> list[tuple[str, _Pairs]]:
    """The pairs whose flows are of different bytes, so that they must fit at once."""
    match collective:
        case Collective.ALLREDUCE | Collective.BROADCAST | Collective.REDUCE:
            if collective is Collective.ALLREDUCE and n > _ALL_PAIRS_RANKS:
                pairs = [pair for pair in pairs if 0 in pair]
            return [(f"{s} -> {t}", [(s, t)]) for s, t in pairs]
        case Collective.ALLGATHER:
            return [(f"into {r}", [(s, t) for s, t in pairs if t == r]) for r in range(n)]
        case Collective.REDUCE_SCATTER:
            return [(f"out of {r}", [(s, t) for s, t in pairs if s == r]) for r in range(n)]
        case Collective.GATHER:
            return [("into the root", pairs)]
        case Collective.SCATTER:
            return [("out of the root", pairs)]
        case Collective.ALL_TO_ALL:
            return [("of all pairs", pairs)]


def _flow_share(n: int, collective: Collective) -> float:
    """What each pair's flow must move, as a fraction of the total bytes."""
    whole = (Collective.ALLREDUCE, Collective.BROADCAST, Collective.REDUCE)
    return 1.0 if collective in whole else 1.0 / n


def _volume_share(n: int, collective: Collective) -> float:
    """What all sends together must move, as a multiple of the total bytes."""
    match collective:
        case Collective.ALLREDUCE:
            return 2.0 * (n - 1)
        case Collective.GATHER | Collective.SCATTER:
            return (n - 1) / n
        case _:
            return n - 1.0
