"""monitored_barrier: a barrier through torch's store that names the missing ranks."""

from datetime import timedelta
from typing import Any

from headrace.collectives.run.torch.store import answering, wait_for
from headrace.errors import CommunicationError


def monitored_barrier(
    store: Any, rank: int, ranks: int, round_: int, timeout: timedelta, *, all_ranks: bool
) -> None:
    """Return when all ranks have called it; rank 0 detects missing ranks and publishes them.

    Parameters
    ----------
    round_ : number of such barriers of the group before, equal on all ranks.
    all_ranks : name every missing rank; else only the first.

    Raises
    ------
    CommunicationError : naming the ranks that did not arrive within `timeout`; the store does not
        answer.
    """
    prefix, what = f"monitored_barrier/{round_}", f"rank {rank}: monitored_barrier"
    limit_s = timeout.total_seconds()
    with answering(store, what):
        store.set(f"{prefix}/{rank}", "here")
        if rank == 0:
            verdict = _missing_text(store, prefix, ranks, limit_s, all_ranks=all_ranks)
            store.set(f"{prefix}/verdict", verdict)
        # rank 0 may use up its whole timeout first
        elif wait_for(store, [f"{prefix}/verdict"], 2 * limit_s, what):
            verdict = store.get(f"{prefix}/verdict").decode()
        else:
            verdict = f"rank 0 did not answer within {2 * limit_s:g} s"
    if verdict:
        raise CommunicationError(f"{what}: {verdict}")


def _missing_text(store: Any, prefix: str, ranks: int, limit_s: float, *, all_ranks: bool) -> str:
    keys = [f"{prefix}/{rank}" for rank in range(ranks)]
    if not wait_for(store, keys, limit_s, "monitored_barrier"):
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        named = missing if all_ranks else missing[:1]
        if named:
            return (
                f"rank{'s' if len(named) > 1 else ''} {', '.join(map(str, named))} did not come "
                f"within {limit_s:g} s"
            )
    return ""
