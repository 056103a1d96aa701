"""All-to-all and allgather of a Gloo group as messages between pairs of ranks, in rounds.

Gloo's own take longer than their bytes need: two ranks send one after the other, and in an
all-to-all of more, several send to one rank at once. Here every rank sends to one other and
receives from one in each round.
"""

import queue
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.compression.codecs.requests import AllGather, AllToAll

_FIRST_TAG, _TAGS = 1 << 30, 1 << 29
"""Tags of the messages: far from those that programs use for their own."""

_Round = tuple[Tensor, int, Tensor, int]
"""Tensor to send, its target, tensor to receive into, its source."""


class MessageWork:
    """An exchange under way; waited for as a `torch.distributed.Work`."""

    def __init__(self, group: dist.ProcessGroup, rounds: list[_Round], tag: int) -> None:
        self._group: dist.ProcessGroup | None = group
        self._rounds, self._tag = rounds, tag
        self._done: Future[None] = Future()
        self._received = deque(
            _work(dist.irecv(into, group=group, group_src=source, tag=tag + index))
            for index, (_, _, into, source) in enumerate(rounds)
        )
        self._sent: deque[dist.Work] = deque()
        self._send(0)

    def wait(self, timeout: timedelta | None = None) -> None:
        """Wait for the end.

        Raises
        ------
        RuntimeError : a message failed, or the timeout is over.
        """
        try:
            self._done.result(None if timeout is None else timeout.total_seconds())
        except TimeoutError:
            raise RuntimeError("the messages have not ended yet") from None

    def is_completed(self) -> bool:
        """Return whether the exchange has ended, or failed."""
        return self._done.done()

    def carry_out(self) -> None:
        """Wait for each round's message, and send the next; on the thread for that.

        What torch owns is dropped before this is known to have ended: its destructors release the
        interpreter, and a daemon thread that takes it again while the process exits ends with
        `std::terminate`.
        """
        error: RuntimeError | None = None
        try:
            for index in range(len(self._received)):
                self._received.popleft().wait()
                self._send(index + 1)
            while self._sent:
                self._sent.popleft().wait()
        except RuntimeError as failure:
            error = failure.with_traceback(None)
        except Exception as failure:  # else it would end the thread, and no wait
            error = RuntimeError(repr(failure))
        self._received.clear()
        self._sent.clear()
        self._rounds.clear()
        self._group = None
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    def _send(self, index: int) -> None:
        """Send a round's message, if there is that round."""
        if index < len(self._rounds):
            payload, target, _, _ = self._rounds[index]
            work = dist.isend(payload, group=self._group, group_dst=target, tag=self._tag + index)
            self._sent.append(_work(work))


class Messages:
    """Exchanges of a process group of Gloo, all begun in one order on all ranks.

    A thread waits for them: Gloo's messages cannot be asked whether they have arrived.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._rank, self._ranks = group.rank(), group.size()
        self._tag = 0
        self._begun: queue.SimpleQueue[MessageWork | None] = queue.SimpleQueue()
        threading.Thread(
            target=_carry_out, args=(self._begun,), name="headrace-messages", daemon=True
        ).start()
        weakref.finalize(self, self._begun.put, None).atexit = False

    def begin(self, request: AllToAll | AllGather) -> MessageWork:
        """Begin an exchange of contiguous tensors in host memory.

        Raises
        ------
        RuntimeError : a connection is closed.
        """
        rounds = self._shifted(request) if isinstance(request, AllToAll) else self._ring(request)
        self._tag = (self._tag + len(rounds)) % _TAGS
        work = MessageWork(self._group, rounds, _FIRST_TAG + self._tag)
        self._begun.put(work)
        return work

    def _shifted(self, request: AllToAll) -> list[_Round]:
        """Return an all-to-all's rounds: in the i-th everyone sends to the i-th rank after it."""
        sent, received = request.sent, request.received
        received[self._rank].copy_(sent[self._rank])
        rounds: list[_Round] = []
        for shift in range(1, self._ranks):
            target, source = self._after(shift), self._after(-shift)
            rounds.append((sent[target], target, received[source], source))
        return rounds

    def _ring(self, request: AllGather) -> list[_Round]:
        """Return an allgather's rounds: everyone hands on what it has received last."""
        received = request.received
        received[self._rank].copy_(request.sent.view(-1))
        right, left = self._after(1), self._after(-1)
        return [
            (received[self._after(-shift)], right, received[self._after(-shift - 1)], left)
            for shift in range(self._ranks - 1)
        ]

    def _after(self, shift: int) -> int:
        return (self._rank + shift) % self._ranks

    def abort(self) -> None:
        """Close the group's connections: messages under way fail, on the other ranks, too."""
        tag = _FIRST_TAG - 1  # of no message
        with suppress(RuntimeError):
            into = torch.empty(1, dtype=torch.uint8, device="cpu")
            awaited = dist.irecv(into, group=self._group, group_src=self._after(1), tag=tag)
            _work(awaited).wait(timedelta(milliseconds=1))  # Gloo closes them when it times out


def _carry_out(begun: "queue.SimpleQueue[MessageWork | None]") -> None:
    while (work := begun.get()) is not None:
        work.carry_out()
        del work  # while the next one is awaited


def _work(work: Any) -> dist.Work:
    assert work is not None, "this rank is in the group"
    return work
