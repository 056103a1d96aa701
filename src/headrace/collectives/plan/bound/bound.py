"""Lower bounds on the time of all schedules, by flows, trees, volume and shortest paths.

They hold for programs that move and combine bytes position by position (no coding across
positions of a vector), where b bytes occupy a link of beta for b * beta and arrive alpha later,
and a shared capacity caps the sum of its links' rates.

**Flow.** Byte k of a contribution that must get from s to t crosses a chain of sends from s to t,
alone or combined with others. Over all k these chains are a flow, so ``T >= bytes / (largest flow
from s to t)``. Without shared capacities that flow equals the smallest cut between them; over all
pairs this is M / min(capacity out of S, capacity into S) over all cuts S. With them it is at most
the capacity of the cut, so the bound is at least as strong. Where *different* bytes go to one
rank (allgather, gather), leave one rank (reduce_scatter, scatter), or both (all_to_all), the
flows must fit at once.

**Trees.** Bytes that all ranks want are copied on the way: their sends contain a spanning tree.
All bytes' trees must fit at once (Edmonds 1967 and 1973; column generation in `packing`), which
with several sources or shared capacities can be stronger than every flow into one rank.

**Volume.** Combining N contributions of a byte takes N-1 sends before the first rank has the
total, and each of the N-1 others must receive once more: 2(N-1)M bytes for an allreduce. All
links together carry at most the *egress*, the largest feasible sum of rates. The same holds for
groups of ranks (hosts, racks) in the place of ranks, and the links between them: summed over the
groups, data must enter G-1 of them once (allgather), or cross 2(G-1) times (allreduce).

**Latency.** Bytes take at least the shortest path in alpha.

How alpha adds to these, and why a solver's error cannot break a bound, is argued in `flow`; that
switches do not multicast is assumed there. Topologies too large for linear programs are bound by
cuts (`cuts`), and not all flows of large ones are solved: `Bound.formula` names the terms computed.
Demands that are not blocks alike (all_to_all_v, custom) are bound by their chunks. Where chunks
may not be split, `unsplit` has a stronger bound.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from headrace import fields
from headrace.artifact_value import stored_value
from headrace.collectives.demand import STANDARD, Collective, Demand
from headrace.errors import ArtifactError, InputError, TopologyError
from headrace.topology import BYTES_PER_MB, Topology


@stored_value("headrace.collectives.plan.bound", ArtifactError)
class Term:
    """One term of a bound: ``us = mb * us_per_mb + alpha_us``.

    Attributes
    ----------
    name : "flow 0 -> 3", "flow into 2", "volume", "latency 1 -> 2", ...
    mb : MB that have to pass.
    us_per_mb : one over the rate at which they can pass.
    alpha_us : share of alpha.
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


@stored_value("headrace.collectives.plan.bound", ArtifactError)
class Bound:
    """No schedule takes less than `total_us` on the topology with this digest.

    Attributes
    ----------
    total_us : the largest term.
    bandwidth_us : the largest term without alpha (the payload limit).
    latency_us : the largest shortest path in alpha that some byte must take.
    formula : the terms computed, in words.
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
        """Return the JSON form that `from_head` reads."""
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


def lower_bound(topology: Topology, demand: Demand, total_bytes: int) -> Bound:
    """Return the bound on `demand`'s collective moving `total_bytes` (see `Demand.chunk_bytes`).

    The flows do not depend on the bytes; they are cached for the latest topologies.

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
    # Loads SciPy, which a command line that only shows a plan need not load.
    from headrace.collectives.plan.bound.terms import kinds

    kind_terms = kinds(topology, _without_chunks(demand))
    total_mb = total_bytes / BYTES_PER_MB
    terms = [
        [
            Term(name=name, mb=share * total_mb, us_per_mb=rate.us_per_mb, alpha_us=rate.alpha_us)
            for name, share, rate in kind
        ]
        for kind in kind_terms.kinds
    ]
    return Bound(
        collective=demand.collective,
        total_bytes=total_bytes,
        total_us=max((term.us for kind in terms for term in kind), default=0.0),
        bandwidth_us=max((term.bandwidth_us for kind in terms for term in kind), default=0.0),
        latency_us=max((term.us for kind in terms[-1:] for term in kind), default=0.0),
        formula=kind_terms.formula,
        terms=tuple(max(kind, key=lambda term: term.us) for kind in terms),
        topology_digest=topology.digest,
    )


def _without_chunks(demand: Demand) -> Demand:
    """The same for all chunk counts, where they only cut blocks finer."""
    if demand.collective in STANDARD:
        return Demand(collective=demand.collective, ranks=demand.ranks, root=demand.root)
    return demand
