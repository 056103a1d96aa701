"""Schedule of two-level aggregation: up within groups, up and down across, down within groups.

The transfers of a chunk are a tree of two levels, used up and then down. Chunks are independent:
`lower` derives dependencies from slots, and a slot is one chunk's. What remains is the order of
lanes, of which there is one per pair of ranks and direction:

- A local and a global stage never share a lane: the peer of one is in the rank's own group, that of
  the other is not. So they delay each other only through the chunk that both belong to.
- The lane from rank a to rank b carries the chunks that b masters up, and those that a masters
  down. A result that has not arrived blocks the transfers behind it, so it is ``3 * lag`` chunks
  late in the lane (``lag`` across groups). The reduction may run ahead by that much only, so that
  traffic in the groups is paced by the uplinks instead of bursting ahead. A channel (a connection)
  of their own for results would remove that limit.
"""

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators.templates.transfers import (
    backwards,
    move,
    pipelined,
    unsupported,
)
from headrace.collectives.plan.generators.templates.two_level.masters import Masters
from headrace.collectives.program import Schedule, Transfer

LEAST_CHUNK_BYTES = 16 << 10
"""PLink 5.1: chunks of 16 to 64 KiB did best."""

CHUNK_BYTES = 32 << 10
"""Target size: the geometric mean of 16 and 64 KiB."""

MOST_TRANSFERS = 20_000
"""Longer vectors get larger chunks: planning should take seconds. Bytes stream within a chunk, so
a larger one costs no more than the latency of its first bytes."""


def two_level(demand: Demand, masters: Masters, *, lag: int | None = None) -> Schedule:
    """Return the allreduce by two-level hierarchical aggregation with these masters.

    Parameters
    ----------
    masters : for ``demand.slots`` chunks.
    lag : chunks by which the reduction may run ahead of the exchange, and that of the fan-out,
        where they share a lane. By default the number of ranks, one chunk of every master
        (measured on shaped TCP links: half of all chunks costs 5% of the bandwidth).

    Raises
    ------
    ProgramError : for every collective but allreduce, or masters of other chunks or ranks.
    """
    if demand.collective is not Collective.ALLREDUCE:
        unsupported("two_level", demand)
    if (masters.ranks, masters.chunks) != (demand.ranks, demand.slots):
        raise ProgramError(
            f"masters are of {masters.chunks} chunks at {masters.ranks} ranks, the demand has "
            f"{demand.slots} at {demand.ranks}: needs the same"
        )
    chains = [stages(masters, chunk) for chunk in range(masters.chunks)]
    return Schedule.of(demand, pipelined(chains, demand.ranks if lag is None else lag))


def stages(masters: Masters, chunk: int) -> list[list[Transfer]]:
    """Return the four stages of one chunk: up within groups, up and down across, down within."""
    slot = range(chunk, chunk + 1)
    local, top = masters.local_master[chunk].tolist(), int(masters.global_master[chunk])
    across = [t for master in local if master != top for t in move(top, master, slot)]
    within = [
        t
        for group, master in zip(masters.groups, local, strict=True)
        for rank in group
        if rank != master
        for t in move(master, rank, slot)
    ]
    return [backwards(within, reduce=True), backwards(across, reduce=True), across, within]


def chunk_count(total_bytes: int, ranks: int) -> int:
    """Return the number of chunks of a call of `total_bytes`, each of 16 to 64 KiB.

    Short calls get the smallest chunks allowed, until every rank has one to master; longer ones a
    multiple of the ranks, as close to 32 KiB as possible. Under 16 KiB there is one chunk, and with
    more than `MOST_TRANSFERS` transfers chunks grow beyond 64 KiB.
    """
    finest = total_bytes // LEAST_CHUNK_BYTES
    if finest <= ranks:
        return max(1, finest)
    turns = max(1, round(total_bytes / (CHUNK_BYTES * ranks)))
    most = MOST_TRANSFERS // (2 * max(1, ranks - 1) * ranks)
    return ranks * max(1, min(turns, most))
