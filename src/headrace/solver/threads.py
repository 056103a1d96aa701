"""A solver in a thread of its own, so that the caller's receives the user's interrupt."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.05


def run_in_thread(
    solve: Callable[[], T], stop: Callable[[], None], poll: Callable[[], None] | None = None
) -> T:
    """Return the result of `solve`, which another thread calls; raise what it raises.

    Parameters
    ----------
    stop : lets `solve` return soon. Where the wait is interrupted it is called until it has, as a
        solver may ignore a stop that comes before its search.
    poll : called while the solver runs.

    Raises
    ------
    BaseException : what interrupts the wait, such as Ctrl-C, once the solver has ended.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        try:
            results.append(solve())
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=work, name="solver")
    thread.start()
    try:
        # Not `join`: interrupted, it takes the thread for ended. And a signal may wake another
        # thread than this, so poll.
        while not ended.wait(_POLL_S):
            if poll is not None:
                poll()
    except BaseException:  # an interrupt, or a time limit of the caller's
        while not ended.wait(_POLL_S):
            stop()
        raise
    finally:
        thread.join()
    if errors:
        raise errors[0]
    return results[0]
