"""monitored_barrier: a barrier through torch's store that says who is missing."""

from datetime import timedelta
from typing import Any

from headrace.errors import CommunicationError


def monitored_barrier(
    store: Any, rank: int, ranks: int, round_: int, timeout: timedelta, *, all_ranks: bool
) -> None:
    """Return when all ranks are here; rank 0 finds out who is not and tells the others.

    Parameters
    ----------
    round_ : how many such barriers the group had before; the ranks must agree.
    all_ranks : name every missing rank; else only the first.

    Raises
    ------
    CommunicationError : naming the ranks that did not come within `timeout`.
    """
    prefix = f"monitored_barrier/{round_}"
    store.set(f"{prefix}/{rank}", "here")
    if rank == 0:
        verdict = _missing_text(store, prefix, ranks, timeout, all_ranks=all_ranks)
        store.set(f"{prefix}/verdict", verdict)
    else:
        try:
            # rank 0 may use up its whole timeout first
            store.wait([f"{prefix}/verdict"], 2 * timeout)
        except RuntimeError as error:
            raise CommunicationError(
                f"rank {rank}: monitored_barrier: rank 0 did not answer within "
                f"{2 * timeout.total_seconds():g} s"
            ) from error
        verdict = store.get(f"{prefix}/verdict").decode()
    if verdict:
        raise CommunicationError(f"rank {rank}: monitored_barrier: {verdict}")


def _missing_text(
    store: Any, prefix: str, ranks: int, timeout: timedelta, *, all_ranks: bool
) -> str:
    keys = [f"{prefix}/{rank}" for rank in range(ranks)]
    try:
        store.wait(keys, timeout)
    except RuntimeError:
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        named = missing if all_ranks else missing[:1]
        if named:
            return (
                f"rank{'s' if len(named) > 1 else ''} {', '.join(map(str, named))} did not come "
                f"within {timeout.total_seconds():g} s"
            )
    return ""
