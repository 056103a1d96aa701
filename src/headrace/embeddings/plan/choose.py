"""Choice of the lookahead, by the room of the caches and by what a longer one saves."""

import math

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.plan.plan import EmbeddingPlan
from headrace.embeddings.profile import EmbeddingProfile, Synchronisation
from headrace.units import size

PREFETCH = 4
"""Batches between a row's fetch and its use. Two hide a fetch of up to a step's duration; the
others bridge a step that is slower to fetch, or faster to compute, than its neighbours."""


def plan_embeddings(
    profile: EmbeddingProfile,
    *,
    row_bytes: int,
    cache_bytes: int | None = None,
    servers: int = 1,
    readers: int = 1,
    synchronisation: Synchronisation = Synchronisation.TARGETED,
) -> EmbeddingPlan:
    """Return the plan with the longest lookahead that the caches have room for (5.3).

    A longer lookahead never fetches more rows. It is at most that of the profile.

    Parameters
    ----------
    row_bytes : of a row with its optimizer's state.
    cache_bytes : of each trainer's cache; None: as many as that lookahead needs.

    Raises
    ------
    EmbeddingError : the caches have no room for a batch; a number is out of range.
    """
    lookahead = profile.lookahead
    if cache_bytes is None:
        cache_bytes = math.ceil(needed_slots(profile, lookahead)) * row_bytes
    else:
        slots = cache_bytes // row_bytes
        while lookahead and needed_slots(profile, lookahead) > slots:
            lookahead -= 1
        if not lookahead:
            least = math.ceil(needed_slots(profile, 1)) * row_bytes
            raise EmbeddingError(
                f"a cache of {size(cache_bytes)} has no room for the rows of a batch: it needs "
                f"{size(least)}"
            )
    transfers = profile.transfers[synchronisation]
    return EmbeddingPlan(
        batch=profile.batch,
        trainers=profile.trainers,
        servers=servers,
        readers=readers,
        lookahead=lookahead,
        prefetch=min(PREFETCH, lookahead),
        cache_bytes=cache_bytes,
        row_bytes=row_bytes,
        synchronisation=synchronisation,
        rows=profile.rows,
        fetched_rows=profile.fetched(lookahead),
        resident_rows=profile.resident(lookahead),
        exchanged_rows=transfers.rows,
        critical_rows=transfers.critical_rows,
    )


def needed_slots(profile: EmbeddingProfile, lookahead: int) -> float:
    """Return the slots that a cache needs at a lookahead.

    Beside the rows that stay there are those that are fetched ahead, and those whose slots are not
    free because their eviction may not have been written back: of as many batches.
    """
    fetched = profile.fetched(lookahead)
    return profile.resident(lookahead) + 2 * min(PREFETCH, lookahead) * fetched
