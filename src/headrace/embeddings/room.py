"""Room that caches need for the rows of a lookahead: by a plan, and while a job goes on."""

MOST_LOOKAHEAD = 300
"""Batches that are looked at, at most, where the lookahead follows from the caches' slots."""


def needed_slots(resident: float, fetched: float, prefetch: int) -> float:
    """Return the slots that a cache needs, so that no fetch waits for a slot.

    A batch's rows come into slots that were free `prefetch` batches before its use: while a batch
    is trained, those of the `prefetch` - 1 next ones have slots beside it. Room for one batch more
    is a margin, as some fetch more than others.

    Parameters
    ----------
    resident : rows in the cache while a batch is trained, its own included.
    fetched : rows that are fetched for a batch.
    prefetch : batches between a row's fetch and its use.
    """
    return resident + prefetch * fetched


def resident_rows(distinct: float, fetched: float, batches: int) -> float:
    """Return the rows in a cache while a batch is trained, in a steady state.

    Of the distinct rows of a window, each of its batches but one fetches those that the cache has
    not.

    Parameters
    ----------
    distinct : rows that the batches of a window use.
    fetched : of them, those of the last batch that no batch before it uses.
    batches : of the window.
    """
    return distinct - (batches - 1) * fetched
