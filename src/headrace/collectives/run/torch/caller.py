"""Execution of bound calls: choose the program, load it once, run or submit it."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist

from headrace import _native
from headrace._native import Priority
from headrace.collectives.demand import Collective
from headrace.collectives.run.choose import Choice, Chooser
from headrace.collectives.run.switch import PlanSwitch
from headrace.collectives.run.torch import buffers as binding
from headrace.collectives.run.torch.buffers import (
    IN_PLACE,
    MOVED,
    Arithmetic,
    Binding,
    BlockLayout,
    Tensors,
)
from headrace.collectives.run.torch.callbacks import Callbacks
from headrace.collectives.run.torch.compared import CallComparison
from headrace.collectives.run.torch.completions import completion_threads
from headrace.collectives.run.torch.polling import holds_within
from headrace.collectives.run.torch.spans import open_span, profiling, span
from headrace.collectives.run.torch.work import PendingWork, SeveralWorks, guarded
from headrace.errors import CommunicationError, InputError
from headrace.executor import Executor, LoadedProgram
from headrace.executor.background import in_background
from headrace.executor.executor import Gone
from headrace.job.switch import Activation

if TYPE_CHECKING:
    from headrace.collectives.plan.book import PlanBook

log = logging.getLogger(__name__)

_K = TypeVar("_K")
_V = TypeVar("_V")

DONE = SeveralWorks()
"""Work of every synchronous call, shared as it has no state."""

# Largest calls of urgent priority, which do not wait behind larger ones.
_URGENT_BYTES = 64 << 10

_CACHED_CALLS = 256
_LOOSE_WORKS = 64
_REGION_WORKS = 1024


class Ready(NamedTuple):
    """A program loaded into the executor, its priority, and the blocks of its buffers."""

    program: LoadedProgram
    priority: Priority
    layout: BlockLayout


class Reduction(NamedTuple):
    """An allreduce of one (dtype, elements, operator), prepared but for its address.

    `direct`: the tensor's own memory is used if it is contiguous.
    """

    prepared: _native.Call
    priority: Priority
    chunks: int
    direct: bool


class Region(threading.local):
    """Works that a thread has begun in its open coalescing region.

    Attributes
    ----------
    works : None if no region is open.
    """

    works: list[PendingWork] | None = None

    def add(self, work: PendingWork) -> None:
        """Add a work to the open region."""
        assert self.works is not None
        self.works.append(work)
        if len(self.works) % _REGION_WORKS == 0:  # after an error a region may never be closed
            self.works = [w for w in self.works if not w.is_completed() or w.exception()]


class Caller:
    """Runs the calls of one group.

    Parameters
    ----------
    executor : connected; closed by `close`.
    timeout_s : default deadline of calls, in seconds.
    callbacks : run the callbacks of the futures of collectives.

    Attributes
    ----------
    switch : changes plans between calls; every call checks its `armed` first.
    reductions : by (dtype, elements, operator), for the plan in force.
    region : this thread's open coalescing region, if any.
    comparison : of each collective among the ranks before it begins; None: they are not compared.
    """

    comparison: CallComparison | None = None

    def __init__(
        self, executor: Executor, chooser: Chooser, timeout_s: float, callbacks: Callbacks
    ) -> None:
        self.executor = executor
        self.timeout_s = timeout_s
        self._chooser = chooser
        self.callbacks = callbacks
        self._programs: dict[str, LoadedProgram] = {}
        self._ready: dict[tuple[Collective, int, int], Ready] = {}
        self.reductions: dict[tuple[torch.dtype, int, Any], Reduction] = {}
        self._loose: dict[int, PendingWork] = {}
        self._most_loose = _LOOSE_WORKS  # until those that have ended are looked for
        self._starting: set[PendingWork] = set()
        self.region = Region()
        self.switch = PlanSwitch(executor, self._loaded)
        self._attached = False
        self._before = executor.submitted()

    def sequence(self) -> int:
        """Return the number of collectives begun, without those that compare."""
        return self.executor.submitted() - self._before

    def ready(self, collective: Collective, total_bytes: int, root: int = 0) -> Ready:
        """Return the program for the next call, chosen at its first use."""
        if self.switch.armed:
            self.switch.turn((collective, total_bytes))
        return self._chosen((collective, total_bytes, root))

    def _chosen(self, key: tuple[Collective, int, int]) -> Ready:
        ready = self._ready.get(key)
        if ready is None:
            choice = self._chooser.choose(*key)
            log.debug("%s of %d bytes from %d: %s", *key, choice.origin)
            collective, total_bytes, _ = key
            # the ranks of an all-to-all may know the sizes of their own blocks only
            small = total_bytes <= _URGENT_BYTES and collective is not Collective.ALL_TO_ALL
            ready = self._load(choice, Priority.urgent if small else Priority.normal)
            _remember(self._ready, key, ready)
        return ready

    def ready_for_blocks(self, collective: Collective) -> Ready:
        """Return the program for the next call, of blocks of any sizes."""
        if self.switch.armed:
            self.switch.turn((collective, 0))
        return self._load(self._chooser.block_by_block(collective), Priority.normal)

    def reduction(self, tensor: torch.Tensor, op: Any) -> Reduction:
        """Return the prepared allreduce of tensors such as `tensor` (after `switch.turn`)."""
        binding.check(tensor)
        arithmetic = binding.arithmetic(tensor.dtype, op)
        ready = self._chosen((Collective.ALLREDUCE, tensor.nbytes, 0))
        chunks = ready.layout.chunks
        elements = tensor.numel() * (2 if tensor.dtype.is_complex else 1)
        prepared = Reduction(
            self.executor.prepare(ready.program, [(0, elements, 1, chunks)], *arithmetic),
            ready.priority,
            chunks,
            not (tensor.dtype.is_complex or binding.is_premul_sum(op)),
        )
        _remember(self.reductions, (tensor.dtype, tensor.numel(), op), prepared)
        return prepared

    def allreduce(
        self,
        reduction: Reduction,
        address: int,
        tensors: Tensors,
        opts: Any,
        bound: Binding = IN_PLACE,
    ) -> dist.Work:
        """Run or submit a prepared allreduce at `address`."""
        if self.comparison is not None:
            self.comparison.allreduce(tensors, opts)
        call = reduction.prepared.at(
            address, self.executor.epoch, _priority(reduction), self.deadline_s(opts)
        )
        return self._run(call, Collective.ALLREDUCE, bound, tensors, opts)

    def call(
        self,
        ready: Ready,
        bound: Binding,
        tensors: Tensors,
        opts: Any,
        arithmetic: Arithmetic = MOVED,
    ) -> dist.Work:
        """Run a collective to its end, or submit it if torch's `opts` are asynchronous."""
        if self.comparison is not None:
            self.comparison.call(ready.program.collective, bound, tensors, opts, arithmetic)
        priority, deadline_s = _priority(ready), self.deadline_s(opts)
        call = self.executor.prepare(
            ready.program, bound.segments, *arithmetic, priority=priority, deadline_s=deadline_s
        )
        return self._run(call, ready.program.collective, bound, tensors, opts)

    def gather_rows(self, rows: torch.Tensor, opts: Any) -> None:
        """All-gather the rows of a tensor of bytes in place, outside of the sequence of calls."""
        ready = self._chosen((Collective.ALLGATHER, rows.nbytes, 0))
        bound = binding.gathered([rows], rows[self.executor.rank], ready.layout)
        self._before += 1
        deadline_s = self.deadline_s(opts)
        self.executor.run(
            self.executor.prepare(
                ready.program, bound.segments, priority=ready.priority, deadline_s=deadline_s
            )
        )

    def _run(
        self, call: _native.Call, name: str, bound: Binding, tensors: Tensors, opts: Any
    ) -> dist.Work:
        if opts.asyncOp:
            return self._submit(call, name, bound, tensors)
        if profiling():
            with span(name):
                self.executor.run(call)
        else:
            self.executor.run(call)
        if bound.after is not None:
            bound.after()
        return DONE

    def _submit(
        self, call: _native.Call, name: str, bound: Binding, tensors: Tensors
    ) -> PendingWork:
        """Submit a collective; a completion thread ends its work."""
        if not self._attached:
            completion_threads.attach()
            self._attached = True
        executor = self.executor
        after = guarded((*tensors, *bound.keep), bound.after)
        work = PendingWork(executor, tensors, after, bound.keep, callbacks=self.callbacks)

        def begin() -> int:
            handle = executor.submit(call, notify=True)
            work.sequence = self.sequence()
            return handle

        if profiling():
            work.span = open_span(name)
        return self._start(work, begin, completion_threads.enter)

    def send(self, tensor: torch.Tensor, dst: int, tag: int) -> PendingWork:
        """Start sending to rank `dst`."""
        bound = binding.outgoing(tensor)
        work = self._message(self.executor.send, tensor, bound, dst, tag)
        work.is_send = True
        return work

    def receive(self, tensor: torch.Tensor, src: int, tag: int) -> PendingWork:
        """Start receiving from rank `src` (-1: any)."""
        bound = binding.in_place(tensor, 1, moved=True)
        return self._message(self.executor.recv, tensor, bound, src, tag)

    def deadline_s(self, opts: Any) -> float:
        """Return the deadline in torch's `opts`, or the group's."""
        seconds = opts.timeout.total_seconds()  # negative: not set
        return seconds if seconds > 0 else self.timeout_s

    def drain(self, limit_s: float) -> None:
        """Wait up to `limit_s` for calls that were not waited for, except receives."""
        if self._attached:
            completion_threads.drain(self.executor, limit_s)
        end = time.monotonic() + limit_s
        for work in list(self._loose.values()):
            if work.is_send:
                holds_within(work.is_completed, end - time.monotonic())

    def close(self, group: str) -> None:
        """Close all connections; calls under way fail, and so does every later one."""
        self.switch.close()
        self.executor.close()
        if self._attached:
            completion_threads.detach()
        for work in list(self._loose.values()):
            work.is_completed()  # takes the outcome from the executor
        # torch may keep the group for good: release native resources now
        why = f"process group {group!r} was destroyed"
        self.executor = cast(Executor, Gone(lambda name: CommunicationError(f"{name}: {why}")))
        self._starting.clear()
        for table in (self._loose, self._programs, self._ready, self.reductions):
            table.clear()

    def _load(self, choice: Choice, priority: Priority) -> Ready:
        digest = choice.proof.program_digest
        program = self._programs.get(digest)
        if program is None:
            program = self._programs[digest] = self.executor.load(choice.program, choice.proof)
        rank, ranks = self.executor.rank, self.executor.ranks
        layout = BlockLayout(rank, ranks, choice.chunks, choice.blockwise, choice.keeps_inputs)
        return Ready(program, priority, layout)

    def _loaded(self, book: "PlanBook") -> Activation:
        """Load a book's programs; returns the function that puts them in force."""
        executor = self.executor
        if book.topology.ranks != executor.ranks:
            raise InputError(
                f"the plan book is for {book.topology.ranks} ranks, this group has {executor.ranks}"
            )
        chooser = self._chooser.with_book(book)
        programs: dict[str, LoadedProgram] = {}
        for choice in chooser.planned():
            loaded = executor.load(choice.program, choice.proof)
            if loaded.channels > executor.channels:
                raise InputError(
                    f"the plan book needs {loaded.channels} channels, this group has "
                    f"{executor.channels}: set HEADRACE_CHANNELS to {loaded.channels}"
                )
            programs[loaded.digest] = loaded

        def begin() -> None:
            # earlier choices remain in use by calls under way only
            self._chooser, self._programs = chooser, programs
            self._ready, self.reductions = {}, {}

        return begin

    def _message(
        self, begin: Callable[..., int], tensor: torch.Tensor, bound: Binding, peer: int, tag: int
    ) -> PendingWork:
        """Begin to send or receive a message."""
        # A message is usually waited for at once, so no completion thread is notified. The table
        # keeps the buffers of those that are not waited for.
        if len(self._loose) >= self._most_loose:
            for work in list(self._loose.values()):
                work.is_completed()
            self._most_loose = max(_LOOSE_WORKS, 2 * len(self._loose))
        after, seconds = guarded((tensor, *bound.keep), bound.after), self.timeout_s
        work = PendingWork(
            self.executor, [tensor], after, bound.keep, loose=self._loose, timeout_s=seconds
        )
        address, size, *_ = bound.segments[0]
        element = binding.element(tensor.dtype)
        return self._start(
            work,
            lambda: begin(address, size, peer, tag, deadline_s=seconds, element=element),
            self._loose.__setitem__,
        )

    def _start(
        self,
        work: PendingWork,
        begin: Callable[[], int],
        enter: Callable[[int, PendingWork], object],
    ) -> PendingWork:
        """Begin the task whose buffers `work` holds, and enter it in a table that keeps it.

        An interrupt (a signal handler that raises) may come at any point, also when the executor
        has the buffers and its handle is lost: then they are kept until the group is closed.
        """
        self._starting.add(work)
        try:
            handle = work.handle = begin()
        except (CommunicationError, InputError):  # not begun
            self._starting.discard(work)
            raise
        enter(handle, work)
        self._starting.discard(work)
        if self.region.works is not None:
            self.region.add(work)
        return work


def _priority(ready: Ready | Reduction) -> Priority:
    return Priority.background if in_background() else ready.priority


def _remember(cache: dict[_K, _V], key: _K, value: _V) -> None:
    if len(cache) >= _CACHED_CALLS:  # sizes that never repeat (pickled objects, say)
        cache.clear()
    cache[key] = value
