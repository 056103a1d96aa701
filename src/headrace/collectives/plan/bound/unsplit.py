"""A stronger lower bound where chunks are not split, from whole chunks across cuts (`counting`).

Small cases in which all resources of a message are equally fast are solved by constraint
programming (`exact.proved_us`): its bound is a term as well. Without alpha it is usually the
optimum; with alpha that of a relaxation in which alpha delays a chunk but holds nothing, so that
messages of several chunks gain nothing by sharing it.
"""

from dataclasses import replace
from functools import lru_cache

from headrace.collectives.demand import STANDARD, Collective, Demand
from headrace.collectives.plan.bound import Bound, Term, lower_bound
from headrace.collectives.plan.bound.counting import most_urgent_cut
from headrace.collectives.plan.cost.resources import resource_routes
from headrace.collectives.plan.ir.chunks import deliveries_of
from headrace.topology import BYTES_PER_MB, Topology, transposed

_MOST_RANKS = 300
"""Beyond so many ranks distances between all pairs are not computed."""

_MOST_PROVED = 300
"""Largest number of possible sends (chunks times links) for constraint programming."""

_COMBINING = (Collective.REDUCE, Collective.REDUCE_SCATTER)


def unsplit_bound(topology: Topology, demand: Demand, total_bytes: int) -> Bound:
    """Return `lower_bound` with a term for `demand`'s chunks if none of them may be split.

    Combining collectives are bounded on the transposed topology; allreduce and other demands that
    combine get no such term.

    Raises
    ------
    InputError, TopologyError : as `lower_bound`.
    """
    bound = lower_bound(topology, demand, total_bytes)
    combines = demand.collective is Collective.ALLREDUCE or demand.collective not in STANDARD
    if combines or not 1 < topology.ranks <= _MOST_RANKS or total_bytes == 0:
        return bound
    graph = transposed(topology) if demand.collective in _COMBINING else topology
    chunk_mb = demand.chunk_bytes(total_bytes) / BYTES_PER_MB
    count = most_urgent_cut(graph, deliveries_of(demand), chunk_mb)
    terms = [Term(name=f"whole chunks {count.name}", mb=0.0, us_per_mb=0.0, alpha_us=count.us)]
    formula = f"{bound.formula}; whole chunks across cuts around ranks and groups"
    if (proved := _proved_us(graph, demand, chunk_mb)) is not None:
        terms.append(Term(name="exhausted search", mb=0.0, us_per_mb=0.0, alpha_us=proved))
        formula += "; what constraint programming proves of whole chunks"
    return replace(
        bound,
        total_us=max(bound.total_us, *(term.us for term in terms)),
        formula=formula,
        terms=(*bound.terms, *terms),
    )


@lru_cache(maxsize=64)
def _proved_us(graph: Topology, demand: Demand, chunk_mb: float) -> float | None:
    """Return the bound that constraint programming proves of a small case; None if it has none.

    It sends one chunk a message. That is no restriction only where a message holds all its
    resources for the same time: a message of two chunks over a slow link holds a fast NIC once and
    then frees it for others, two messages take it twice.
    """
    deliveries = deliveries_of(demand)
    if deliveries.chunks * len(graph.links) > _MOST_PROVED:
        return None
    ways, _ = resource_routes(graph, range(len(graph.links)))
    if any(len({beta for _, beta in resource_betas}) > 1 for resource_betas in ways.values()):
        return None
    from headrace.collectives.plan.bound.exact import proved_us  # loads OR-Tools

    return proved_us(graph, deliveries, chunk_mb)
