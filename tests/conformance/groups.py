"""Groups of ranks as threads of this process, over real sockets on loopback."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.executor import Executor


def each(executors: list[Executor], action: Callable[[Executor], None]) -> None:
    """Run `action` for every rank at once; the first error is raised here."""
    errors: list[BaseException] = []

    def guarded(executor: Executor) -> None:
        try:
            action(executor)
        except BaseException as error:  # raised again by the caller
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(executor,)) for executor in executors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@contextmanager
def group(
    ranks: int, channels: int = 2, *, shared_memory: bool = True, tls: bool = False
) -> Iterator[list[Executor]]:
    """A connected group."""
    executors = [
        Executor(
            rank, ranks, secret="tests", channels=channels, shared_memory=shared_memory, tls=tls
        )
        for rank in range(ranks)
    ]
    addresses = [executor.address for executor in executors]
    try:
        each(executors, lambda executor: executor.connect(addresses, 20.0))
        yield executors
    finally:
        for executor in executors:
            executor.close()
