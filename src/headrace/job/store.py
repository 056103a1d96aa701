"""torch's stores: names in messages, values of any size, errors that tell loss from timeout."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from headrace.errors import CommunicationError

_PROBE_KEY = "headrace/probe"
_LONGEST_S = 1e9  # 30 years: a timedelta has room for it
_PART_BYTES = 4 << 20  # torch's TCP store takes no values above 8 MiB


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


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")
