"""torch's stores: names in messages, errors that separate a loss from a timeout, a barrier."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from headrace.errors import CommunicationError

_PROBE_KEY = "headrace/probe"
_LONGEST_S = 1e9  # 30 years: a timedelta has room for it
_PART_BYTES = 4 << 20  # torch's TCP store takes no values above 8 MiB
_READ_S = 5.0  # for ranks that are in a barrier to read its verdict


def innermost(store: Any) -> Any:
    """Return the store behind all prefixes."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def describe_store(store: Any) -> str:
    """Return a name for a store: with its address or file, if it has one."""
    store = innermost(store)
    host, port, path = (getattr(store, name, None) for name in ("host", "port", "path"))
    if host:
        return f"the store at {f'[{host}]' if ':' in str(host) else host}:{port}"
    return f"the store in the file {path}" if path else "the store"


def is_lost(store: Any, error: BaseException) -> bool:
    """Return whether `error`, raised by an operation on `store`, means that the store is lost.

    torch raises the same type for a wait that timed out and, from some stores, for a connection
    that broke: a store that is alive answers the next operation.
    """
    if type(error).__name__ == "DistNetworkError":  # not all users of this module load torch
        return True
    try:
        store.check([_PROBE_KEY])
    except RuntimeError:
        return True
    return False


@contextmanager
def answering(store: Any, what: str) -> Generator[None]:
    """Turn the errors of operations on a lost store into one that names it.

    Parameters
    ----------
    what : rank and operation, the beginning of the message: "rank 3: rendezvous".

    Raises
    ------
    CommunicationError : the store does not answer. Errors of a live store pass unchanged.
    """
    try:
        yield
    except CommunicationError:
        raise
    except RuntimeError as error:  # torch's store errors derive from it
        if not is_lost(store, error):
            raise
        raise CommunicationError(
            f"{what}: {describe_store(store)} does not answer: the process that runs it (rank 0, "
            f"or the launcher) ended, or the network to it is down ({_first_line(error)})"
        ) from error


def wait_for(store: Any, keys: Sequence[str], timeout_s: float, what: str) -> bool:
    """Wait for all `keys`; returns whether they were set within `timeout_s` seconds.

    Raises
    ------
    CommunicationError : the store does not answer.
    """
    with answering(store, what):
        try:
            # torch takes a timeout of zero for its default
            store.wait(list(keys), timedelta(seconds=min(max(timeout_s, 0.001), _LONGEST_S)))
        except RuntimeError as error:
            if is_lost(store, error):
                raise
            return False
    return True


def in_parts(content: bytes) -> list[bytes]:
    """Return the parts of a content of any size, each of which fits into a value of a store."""
    return [content[i : i + _PART_BYTES] for i in range(0, len(content), _PART_BYTES)]


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
    CommunicationError : naming the ranks that did not arrive within `timeout`, in the words of
        torch's barrier of Gloo, which programs search for; the store does not answer.
    """
    prefix, what = f"monitored_barrier/{round_}", f"rank {rank}: monitored_barrier"
    limit_s = timeout.total_seconds()
    with answering(store, what):
        store.set(f"{prefix}/{rank}", "here")
        if rank == 0:
            verdict = _missing_text(store, prefix, ranks, limit_s, all_ranks=all_ranks)
            store.set(f"{prefix}/verdict", verdict)
            if not verdict:
                _delete_rounds_before(store, round_, ranks)
            readers = [
                peer for peer in range(1, ranks) if not verdict or store.check([f"{prefix}/{peer}"])
            ]
            if readers:  # the store may end with this process
                wait_for(store, [f"{prefix}/read/{peer}" for peer in readers], _READ_S, what)
        # rank 0 may use up its whole timeout first
        elif wait_for(store, [f"{prefix}/verdict"], 2 * limit_s, what):
            verdict = store.get(f"{prefix}/verdict").decode()
            store.set(f"{prefix}/read/{rank}", "")
        else:
            verdict = f"rank 0 did not answer within {2 * limit_s:g} s"
    if verdict and rank > 0:
        verdict = (
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while "
            f"waiting for send/recv from rank 0: {verdict}"
        )
    if verdict:
        raise CommunicationError(verdict)


def _delete_rounds_before(store: Any, round_: int, ranks: int) -> None:
    """Delete the keys of the barriers before one that all ranks have reached.

    A rank that reached this barrier has read the verdicts of those before, or given up on them.
    They are deleted back to the first that is deleted already.
    """
    with suppress(RuntimeError, NotImplementedError):  # some stores cannot delete
        for past in range(round_ - 1, -1, -1):
            prefix = f"monitored_barrier/{past}"
            # a FileStore's `delete_key` returns True for an absent key, too
            if not store.check([f"{prefix}/verdict"]):
                return
            for name in (*range(ranks), *(f"read/{rank}" for rank in range(1, ranks)), "verdict"):
                store.delete_key(f"{prefix}/{name}")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


def _missing_text(store: Any, prefix: str, ranks: int, limit_s: float, *, all_ranks: bool) -> str:
    """Wait at rank 0 for all ranks; returns what it reports, empty if all arrived."""
    keys = [f"{prefix}/{rank}" for rank in range(ranks)]
    if wait_for(store, keys, limit_s, "monitored_barrier"):
        return ""
    missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
    if not missing:
        return ""
    listed = missing if all_ranks else missing[:1]
    names = f"{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"
    if limit_s > 0:
        return f"Rank{names} failed to pass monitoredBarrier in {limit_s:g} s"
    return f"Rank 0 timed out in monitoredBarrier after 0 s, before rank{names} reached it"
