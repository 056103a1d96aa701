"""Barrier that names the ranks which did not reach it, by messages to and from rank 0.

It goes over the connections of the group, as that of Gloo: the process that has torch's store may
have ended, and no other thread waits for the store. Where ranks are missing, the group goes on.
"""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np

from headrace.collectives.run.torch.polling import holds_within
from headrace.errors import CommunicationError
from headrace.executor import Exchange, Executor
from headrace.executor.executor import TAGS

_ROUNDS = TAGS // 2  # whose messages have tags of their own, which no message of a user has
_LONGEST_S = 1e9  # 30 years: limits end waits here, where a passed deadline would end the group
_SEND_S = 5.0  # for the verdict to leave a process that may end next
_LEAST_S = 5e-3  # for arrivals that have only to be read


def monitored_barrier(
    executor: Executor, round_: int, timeout: timedelta, *, all_ranks: bool
) -> None:
    """Return when all ranks have called it; rank 0 detects missing ranks and tells the others.

    Parameters
    ----------
    round_ : number of such barriers of the group before, equal on all ranks.
    all_ranks : name every missing rank; else only the first.

    Raises
    ------
    CommunicationError : naming the ranks that did not arrive within `timeout`, in the words of
        torch's barrier of Gloo, which programs search for; the group has failed.
    """
    tag, limit_s = TAGS + round_ % _ROUNDS, timeout.total_seconds()
    if executor.rank == 0:
        _await_arrivals(executor, tag, limit_s, all_ranks)
    else:
        _arrive(executor, tag, limit_s)


def _await_arrivals(executor: Executor, tag: int, limit_s: float, all_ranks: bool) -> None:
    nothing = np.empty(0, np.uint8)
    peers = range(1, executor.ranks)
    arrivals = [_receive(executor, nothing, peer, tag) for peer in peers]
    _all_end(arrivals, max(limit_s, _LEAST_S))
    missing: list[int] = []
    failure = ""
    for peer, arrival in zip(peers, arrivals, strict=True):
        late = not arrival.done()
        if late:
            arrival.cancel()
        try:
            arrival.wait()
        except CommunicationError as error:
            missing.append(peer)
            failure = failure if late else str(error)
    if failure:
        raise CommunicationError(
            f"{_named(missing)} failed to pass monitoredBarrier, as the group ended: {failure}"
        )
    verdict = _verdict(executor.ranks, limit_s, missing if all_ranks else missing[:1])
    # to the missing ranks, too: they may come late, and would wait for it
    sends = [_send(executor, verdict, peer, tag) for peer in peers]
    _all_end(sends, _SEND_S)
    for send in filter(Exchange.done, sends):
        send.wait()
    if missing:
        raise CommunicationError(_text(verdict))


def _arrive(executor: Executor, tag: int, limit_s: float) -> None:
    verdict = _verdict(executor.ranks)
    answer = _receive(executor, verdict, 0, tag)
    arrival = _send(executor, np.empty(0, np.uint8), 0, tag)
    # rank 0 may use up its whole timeout first
    in_time = _all_end([answer], 2 * limit_s)
    if not in_time:
        answer.cancel()
    try:
        answer.wait()
        arrival.wait()
        reason = _text(verdict)
    except CommunicationError as error:
        reason = str(error) if in_time else f"rank 0 did not answer within {2 * limit_s:g} s"
    if reason:
        raise CommunicationError(
            f"Rank {executor.rank} successfully reached monitoredBarrier, but received errors "
            f"while waiting for send/recv from rank 0: {reason}"
        )


def _verdict(ranks: int, limit_s: float = 0.0, missing: Sequence[int] = ()) -> np.ndarray:
    """Return rank 0's limit, and for each rank whether it is named as missing."""
    verdict = np.zeros(1 + ranks)
    verdict[0] = limit_s
    verdict[[1 + rank for rank in missing]] = 1.0
    return verdict


def _text(verdict: np.ndarray) -> str:
    """Return the report of rank 0; empty if all arrived."""
    missing = np.flatnonzero(verdict[1:]).tolist()
    if not missing:
        return ""
    named = _named(missing)
    if verdict[0] > 0:
        return f"{named} failed to pass monitoredBarrier in {verdict[0]:g} s"
    return f"Rank 0 timed out in monitoredBarrier after 0 s, before {named.lower()} reached it"


def _named(missing: Sequence[int]) -> str:
    return f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"


def _all_end(exchanges: Sequence[Exchange], limit_s: float) -> bool:
    """Wait until all have ended, with or without an error; returns whether they did in time."""
    return holds_within(lambda: all(exchange.done() for exchange in exchanges), limit_s)


def _receive(executor: Executor, array: np.ndarray, src: int, tag: int) -> Exchange:
    begin = (array.ctypes.data, array.nbytes, src, tag)
    return Exchange(
        executor, [array], (executor.recv(*begin, deadline_s=_LONGEST_S) for _ in range(1))
    )


def _send(executor: Executor, array: np.ndarray, dst: int, tag: int) -> Exchange:
    begin = (array.ctypes.data, array.nbytes, dst, tag)
    return Exchange(
        executor, [array], (executor.send(*begin, deadline_s=_LONGEST_S) for _ in range(1))
    )
