"""Sizes and time limits that the searches share."""

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.ir.chunks import deliveries_of
from headrace.collectives.plan.request import Request
from headrace.topology import BYTES_PER_MB

CARRYING = frozenset(
    {
        Collective.BROADCAST,
        Collective.SCATTER,
        Collective.GATHER,
        Collective.ALLGATHER,
        Collective.ALL_TO_ALL,
        Collective.ALL_TO_ALL_V,
        Collective.CUSTOM,
    }
)
"""Collectives that do not combine."""

SECONDS = {"quick": 2.0, "normal": 5.0, "thorough": 120.0}
"""Time limits of one search, as safety nets."""

MOST_DELIVERIES = 120_000
"""Most deliveries (chunks times receivers) of a program; `orbits` scales further."""


def limit_s(effort: str) -> float:
    """Return the time limit of one search in s."""
    return SECONDS[effort]


def check_size(request: Request) -> None:
    """Raise ProgramError if the coarsest cut has more deliveries than searches handle."""
    count = int(deliveries_of(request.demand(least_chunks(request))).targets.sum())
    if count > MOST_DELIVERIES:
        raise ProgramError(f"{count} deliveries, at most {MOST_DELIVERIES}")


def least_chunks(request: Request) -> int:
    """Return the fewest chunks a block: of an allreduce, one for every rank."""
    return request.ranks if request.collective is Collective.ALLREDUCE else 1


def per_rank(request: Request) -> int:
    """Return the method's number of chunks, of the block that a rank owns in an allreduce."""
    return max(1, (request.method.chunks or 1) // least_chunks(request))


def chunk_mb_of(demand: Demand, total_bytes: int) -> float:
    """Return the size of a chunk in MB, as searches take it: never 0, as a message costs alpha."""
    return max(demand.chunk_bytes(total_bytes), 1e-3) / BYTES_PER_MB
