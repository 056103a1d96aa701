"""Priority of the calls that a thread begins, for callers that name none."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_in_background: ContextVar[bool] = ContextVar("in_background", default=False)


def in_background() -> bool:
    """Return whether the calls that this thread begins yield to others."""
    return _in_background.get()


@contextmanager
def background() -> Generator[None]:
    """Give the collectives of torch that this thread begins inside background priority.

    Their bytes move when no others can. All ranks have to use it for the same calls.
    """
    token = _in_background.set(True)
    try:
        yield
    finally:
        _in_background.reset(token)
