"""Calls of torch's process group, bound to memory and passed to the executor.

A synchronous call runs on the caller's thread and returns a finished work; an asynchronous one is
submitted and returns a pending work. torch's Python layer calls the methods here directly; its
C++ layer (DDP's reducer, functional collectives) calls the same methods through pybind's
trampolines, always asynchronously. `staged` copies tensors of other devices to the CPU and back.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import ReduceOptions

from headrace.collectives.demand import Collective
from headrace.collectives.run.switch import PlanSwitch
from headrace.collectives.run.torch import buffers as binding
from headrace.collectives.run.torch import checks, sparse
from headrace.collectives.run.torch.buffers import Tensors
from headrace.collectives.run.torch.callbacks import space
from headrace.collectives.run.torch.caller import DONE, Caller
from headrace.collectives.run.torch.chained import ChainedWork
from headrace.collectives.run.torch.monitored import monitored_barrier
from headrace.collectives.run.torch.split import Origin
from headrace.collectives.run.torch.staging import Use, staged
from headrace.collectives.run.torch.untraced import untraced
from headrace.collectives.run.torch.work import PendingWork, SeveralWorks
from headrace.errors import CommunicationError
from headrace.executor import Executor
from headrace.units import LONGEST_S

TensorLists = Sequence[Sequence[torch.Tensor]]

DEFAULTS = ReduceOptions()
"""Options of calls that are given none: they have the fields of all kinds, and equal defaults."""


ALIASES = {
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "gather_into_tensor": "gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "alltoall_base": "all_to_all_single",
    "recvAnysource": "recv_anysource",
}
"""Torch's former names of methods of `Calls`, and those called from C++ -> the names here."""


@untraced
class Calls:
    """Calls of one rank in one group.

    Parameters
    ----------
    caller : runs the calls of the main program; closed by `shutdown`.
    name : torch's name of the group.
    store : the group's part of torch's store.
    connect_again : makes a caller with connections of its own, for the collectives that callbacks
        begin (see `callbacks`), from their name, the same on all ranks, and a deadline in seconds.

    Attributes
    ----------
    background : ends the group's background threads; called once, before it closes.
    origin : parameters that it was made from; set once it is made.
    observed : whether torch's hooks are called for every call; see `dispatch`.
    """

    # Queried by torch's Python layer.
    supports_coalescing = False
    supports_splitting = True
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    _supports_time_estimate = False

    def __init__(
        self, caller: Caller, name: str, store: Any, connect_again: Callable[[str, float], Caller]
    ) -> None:
        self._rank = caller.executor.rank
        self._ranks = caller.executor.ranks
        self._main = caller
        self._connect_again = connect_again
        self._others: dict[str, Caller] = {}
        self._name = name
        self._store = store
        self._closed = False
        self._barriers = 0
        self.background: Callable[[], None] | None = None
        self.origin: Origin | None = None
        self.observed = False

    # ---- properties of the group ----------------------------------------------------------

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._ranks

    def name(self) -> str:
        return "headrace"

    def getBackendName(self) -> str:  # noqa: N802 - called from C++ by this name
        return "headrace"

    def supports_tensor_alloc(self, _device: Any) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the default deadline of later calls."""
        seconds = min(timeout.total_seconds(), LONGEST_S)
        for caller in (self._main, *self._others.values()):
            caller.timeout_s = seconds

    @property
    def options(self) -> Backend.Options:
        """Options of a backend that makes these calls; torch copies them and changes the copies."""
        return Backend.Options("headrace", timedelta(seconds=self._main.timeout_s))

    def _get_sequence_number_for_group(self) -> int:
        """Return the number of collectives begun; equal on ranks that began the same."""
        return self._main.sequence()

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: it starts at 0 on all ranks."""

    def _split_off(
        self, store: Any, ranks: Sequence[int], name: str, timeout: timedelta | None
    ) -> Any:
        """Make a group of some ranks of this group; see `Origin.part`."""
        assert self.origin is not None
        limit = timeout or timedelta(seconds=self._main.timeout_s)
        return self.origin.part(store, self._rank, ranks, name, limit)

    def eager_connect_single_device(self, _device: Any = None) -> None:
        """Do nothing: every group is connected when it is made."""

    def perform_nocolor_split(self, _device: Any = None) -> None:
        """Do nothing: a group is made by its members alone."""

    def __repr__(self) -> str:
        return f"<headrace group {self._name!r}: rank {self._rank} of {self._ranks}>"

    @property
    def executor(self) -> Executor:
        """Executor of the group's calls."""
        return self._main.executor

    @property
    def switch(self) -> PlanSwitch:
        """Switch of the group's plans."""
        return self._main.switch

    @property
    def store(self) -> Any:
        """The group's part of torch's store."""
        return self._store

    @property
    def _caller(self) -> Caller:
        """Caller for collectives begun in this context: the main program, or a callback."""
        name = space()
        if not name:
            return self._main
        # callbacks of one name run on one thread at a time
        return self._others.get(name) or self._connect(name)

    def _connect(self, name: str) -> Caller:
        if self._closed:
            raise CommunicationError(f"process group {self._name!r} was destroyed")
        try:
            caller = self._others[name] = self._connect_again(name, self._main.timeout_s)
        except CommunicationError as error:
            raise CommunicationError(
                f"{error}: the ranks connect again for the calls of callbacks of group "
                f"{self._name!r}, of which this is one; do the same callbacks begin the same calls "
                "on all ranks?"
            ) from error
        caller.timeout_s, caller.region = self._main.timeout_s, self._main.region
        if self._closed:  # meanwhile
            caller.close(self._name)
        return caller

    # ---- collectives ----------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = DEFAULTS) -> dist.Work:
        (tensor,) = tensors
        if tensor.layout is not torch.strided:
            return sparse.all_reduce(self, tensor, opts)
        if not tensor.is_cpu:  # checked here: `staged` would take a tenth of a small call's time
            return self._staged_allreduce(tensors, opts)
        op, caller = opts.reduceOp, self._caller
        elements = tensor.numel()
        if caller.switch.armed:
            caller.switch.turn((Collective.ALLREDUCE, elements * tensor.itemsize))
        reduction = caller.reductions.get((tensor.dtype, elements, op)) or caller.reduction(
            tensor, op
        )
        plain = reduction.direct and tensor.is_contiguous() and not tensor.is_neg()
        if plain and (address := tensor.data_ptr()):
            return caller.allreduce(reduction, address, tensors, opts)
        binding.check_result(tensor)
        binding.premultiply(tensor, op)
        bound = binding.in_place(binding.real(tensor), reduction.chunks)
        return caller.allreduce(reduction, bound.segments[0][0], tensors, opts, bound)

    _staged_allreduce = staged(Use.BOTH)(allreduce)

    @staged(Use.BOTH)
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = DEFAULTS) -> dist.Work:
        checks.one_dtype("allreduce_coalesced", tensors)
        if not tensors:
            return DONE
        flat, copy_back = binding.flattened(tensors)
        if self._caller.switch.armed:
            self._caller.switch.turn((Collective.ALLREDUCE, flat.nbytes))
        reduction = self._caller.reduction(flat, opts.reduceOp)
        binding.premultiply(flat, opts.reduceOp)
        bound = binding.in_place(binding.real(flat), reduction.chunks)._replace(after=copy_back)
        return self._caller.allreduce(reduction, bound.segments[0][0], tensors, opts, bound)

    @staged(Use.WRITE, at_root=Use.READ)
    def broadcast(self, tensors: Tensors, opts: Any = DEFAULTS) -> dist.Work:
        (tensor,) = tensors
        binding.check(tensor)
        ready = self._caller.ready(Collective.BROADCAST, tensor.nbytes, opts.rootRank)
        chunks = ready.layout.chunks
        if opts.rootRank == self._rank:
            bound = binding.outgoing(tensor, chunks)
        else:
            bound = binding.in_place(tensor, chunks, moved=True)
        return self._caller.call(ready, bound, tensors, opts)

    @staged(Use.READ, at_root=Use.BOTH)
    def reduce(self, tensors: Tensors, opts: Any = DEFAULTS) -> dist.Work:
        (tensor,) = tensors
        binding.check(tensor)
        arithmetic = binding.arithmetic(tensor.dtype, opts.reduceOp)
        ready = self._caller.ready(Collective.REDUCE, tensor.nbytes, opts.rootRank)
        if opts.rootRank == self._rank:
            binding.check_result(tensor)
            binding.premultiply(tensor, opts.reduceOp)
            bound = binding.in_place(binding.real(tensor), ready.layout.chunks)
        else:
            own = binding.premultiplied(tensor, opts.reduceOp)
            bound = binding.read_only(binding.real(own), ready.layout.chunks)
        return self._caller.call(ready, bound, tensors, opts, arithmetic)

    @staged(Use.WRITE, Use.READ)
    def allgather(self, outputs: TensorLists, inputs: Tensors, opts: Any = DEFAULTS) -> dist.Work:
        (own,), (blocks,) = inputs, outputs
        checks.blocks("all_gather", blocks, own, self._rank, self._ranks, even=False)
        if any(block.nbytes != own.nbytes for block in blocks):
            ready = self._caller.ready_for_blocks(Collective.ALLGATHER)
        else:
            ready = self._caller.ready(Collective.ALLGATHER, own.nbytes * self._ranks)
        return self._caller.call(ready, binding.gathered(blocks, own, ready.layout), blocks, opts)

    @staged(Use.WRITE, Use.READ)
    def all_gather_single(
        self, output: torch.Tensor, own: torch.Tensor, opts: Any = DEFAULTS
    ) -> dist.Work:
        checks.joined_blocks("all_gather_single", output, own, self._ranks)
        ready = self._caller.ready(Collective.ALLGATHER, output.nbytes)
        bound = binding.gathered([output], own, ready.layout)
        return self._caller.call(ready, bound, [output], opts)

    # Coalesced calls are refused before the first of them begins.

    def allgather_coalesced(
        self, outputs: TensorLists, inputs: Tensors, opts: Any = DEFAULTS
    ) -> dist.Work:
        for by_rank in outputs:
            checks.pairs("all_gather_coalesced", by_rank, inputs)
        pairs = [([by_rank[k] for by_rank in outputs], own) for k, own in enumerate(inputs)]
        for blocks, own in pairs:
            checks.blocks("all_gather_coalesced", blocks, own, self._rank, self._ranks, even=False)
            for block in blocks:
                binding.check_writable(block)
        return _together([self.allgather([blocks], [own], opts) for blocks, own in pairs])

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = DEFAULTS
    ) -> dist.Work:
        pairs = checks.pairs("all_gather_single_coalesced", outputs, inputs)
        for output, own in pairs:
            checks.joined_blocks("all_gather_single_coalesced", output, own, self._ranks)
            binding.check_writable(output)
        return _together([self.all_gather_single(out, own, opts) for out, own in pairs])

    @staged(Use.WRITE, Use.READ)
    def gather(self, outputs: TensorLists, inputs: Tensors, opts: Any = DEFAULTS) -> dist.Work:
        (own,) = inputs
        return self._gather(self._root_blocks("gather", outputs, own, opts), own, opts)

    @staged(Use.WRITE, Use.READ)
    def gather_single(
        self, output: torch.Tensor, own: torch.Tensor, opts: Any = DEFAULTS
    ) -> dist.Work:
        if opts.rootRank != self._rank:
            return self._gather(None, own, opts)
        checks.joined_blocks("gather_single", output, own, self._ranks)
        return self._gather([output], own, opts)

    @staged(Use.WRITE, Use.READ)
    def scatter(self, outputs: Tensors, inputs: TensorLists, opts: Any = DEFAULTS) -> dist.Work:
        (output,) = outputs
        blocks = self._root_blocks("scatter", inputs, output, opts)
        ready = self._caller.ready(Collective.SCATTER, output.nbytes * self._ranks, opts.rootRank)
        bound = binding.scattered(blocks, output, ready.layout, moved=True)
        return self._caller.call(ready, bound, outputs, opts)

    @staged(Use.WRITE, Use.READ)
    def reduce_scatter(
        self, outputs: Tensors, inputs: TensorLists, opts: Any = DEFAULTS
    ) -> dist.Work:
        (output,), (blocks,) = outputs, inputs
        checks.blocks("reduce_scatter", blocks, output, self._rank, self._ranks, even=False)
        return self._reduce_scatter(output, blocks, opts)

    @staged(Use.WRITE, Use.READ)
    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = DEFAULTS
    ) -> dist.Work:
        checks.joined_blocks("reduce_scatter_single", source, output, self._ranks)
        return self._reduce_scatter(output, [source], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = DEFAULTS
    ) -> dist.Work:
        pairs = checks.pairs("reduce_scatter_single_coalesced", outputs, inputs)
        for output, source in pairs:
            checks.joined_blocks("reduce_scatter_single_coalesced", source, output, self._ranks)
            binding.check_writable(output)
            binding.arithmetic(output.dtype, opts.reduceOp)
        works = [self.reduce_scatter_single(out, source, opts) for out, source in pairs]
        return _together(works)

    @staged(Use.WRITE, Use.READ)
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = DEFAULTS) -> dist.Work:
        checks.list_of("all_to_all", "output", outputs, self._ranks)
        checks.list_of("all_to_all", "input", inputs, self._ranks)
        checks.one_dtype("all_to_all", [*outputs, *inputs])
        checks.own_block(outputs, inputs, self._rank)
        ready = self._caller.ready_for_blocks(Collective.ALL_TO_ALL)
        bound = binding.exchanged_lists(outputs, inputs, ready.layout.chunks)
        return self._caller.call(ready, bound, outputs, opts)

    @staged(Use.WRITE, Use.READ)
    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = DEFAULTS,
    ) -> dist.Work:
        checks.one_dtype("all_to_all_single", [output, source])
        splits = (
            checks.splits("output_split_sizes", output, output_splits, self._ranks),
            checks.splits("input_split_sizes", source, input_splits, self._ranks),
        )
        checks.own_split(splits, self._rank)
        if len(output_splits) or len(input_splits):
            ready = self._caller.ready_for_blocks(Collective.ALL_TO_ALL)
            bound = binding.exchanged(output, source, ready.layout, splits)
        else:
            ready = self._caller.ready(Collective.ALL_TO_ALL, source.nbytes)
            bound = binding.exchanged(output, source, ready.layout)
        return self._caller.call(ready, bound, [output], opts)

    def barrier(self, opts: Any = DEFAULTS) -> dist.Work:
        token = torch.zeros(1, dtype=torch.uint8, device="cpu")
        ready = self._caller.ready(Collective.ALLREDUCE, 1)
        return self._caller.call(ready, binding.in_place(token, ready.layout.chunks), (), opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Barrier that names the ranks that did not reach it.

        `timeout` is the group's if it is None or negative, which is torch's value for "not set"; of
        zero, ranks that are not there yet are missing.
        """
        if timeout is None or timeout < timedelta(0):
            timeout = timedelta(seconds=self._main.timeout_s)
        self._barriers += 1
        monitored_barrier(self.executor, self._barriers, timeout, all_ranks=wait_all_ranks)

    # ---- point to point -------------------------------------------------------------------

    @staged(Use.READ)
    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        checks.tag(tag)
        return self._main.send(tensor, dst, tag)

    @staged(Use.WRITE)
    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        checks.tag(tag)
        return self._main.receive(tensor, src, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        return self.recv(tensors, -1, tag)

    # Calls inside a coalescing region run at once.

    def start_coalescing(self, _device: Any = None) -> None:
        """Begin a region, discarding one that an error left open."""
        self._main.region.works = []

    def end_coalescing(self, _device: Any = None) -> dist.Work:
        """Return one work for all pending works of the region."""
        region = self._main.region
        works, region.works = region.works, None
        return _together(works or ())

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    # ---- the end --------------------------------------------------------------------------

    def shutdown(self, drain_s: float = 5.0) -> None:
        """Close all connections once calls under way have ended, after `drain_s` seconds at most.

        Calls that are then still under way fail. Calling it twice is harmless.
        """
        if self._closed:
            return
        self._closed = True
        if self.executor.forked:
            return  # owned by the parent
        callers = (*self._others.values(), self._main)
        # all also after interrupts, at any moment: a second call does nothing
        with contextlib.ExitStack() as closing:
            # it keeps the executor, and torch may keep the group
            closing.callback(delattr, self, "_connect_again")
            for caller in reversed(callers):
                closing.callback(caller.close, self._name)
            if self.background is not None:
                self.background()
            end = time.monotonic() + drain_s
            for caller in callers:
                caller.drain(max(0.0, end - time.monotonic()))

    def abort(self) -> None:
        """Close all connections at once; calls under way fail."""
        self.shutdown(0.0)

    def chain(self, steps: Iterator[Any], results: list[torch.Tensor]) -> ChainedWork:
        """Begin collectives that follow each other."""
        work = ChainedWork(self.executor, self.fail, steps, results)
        if self._main.region.works is not None:
            self._main.region.add(work)
        return work

    def fail(self, reason: str) -> None:
        """Fail the calls of all ranks, also those that callbacks began; see `Executor.abort`."""
        for caller in (self._main, *list(self._others.values())):
            with contextlib.suppress(CommunicationError):  # closed
                caller.executor.abort(reason)

    # ---- shared by several calls ----------------------------------------------------------

    def _root_blocks(
        self, name: str, lists: TensorLists, own: torch.Tensor, opts: Any
    ) -> Tensors | None:
        """Return the blocks of all ranks at the root, None at the others, checked with the own."""
        if opts.rootRank != self._rank:
            binding.check(own)
            return None
        checks.blocks(name, lists[0], own, self._rank, self._ranks)
        return lists[0]

    def _gather(self, blocks: Tensors | None, own: torch.Tensor, opts: Any) -> dist.Work:
        ready = self._caller.ready(Collective.GATHER, own.nbytes * self._ranks, opts.rootRank)
        bound = binding.gathered(blocks, own, ready.layout)
        return self._caller.call(ready, bound, blocks or (), opts)

    def _reduce_scatter(self, output: torch.Tensor, blocks: Tensors, opts: Any) -> dist.Work:
        arithmetic = binding.arithmetic(output.dtype, opts.reduceOp)
        blocks = [binding.premultiplied(block, opts.reduceOp) for block in blocks]
        if len(blocks) > 1 and any(block.nbytes != output.nbytes for block in blocks):
            ready = self._caller.ready_for_blocks(Collective.REDUCE_SCATTER)
        else:
            ready = self._caller.ready(Collective.REDUCE_SCATTER, output.nbytes * self._ranks)
        bound = binding.scattered(blocks, output, ready.layout, moved=False)
        return self._caller.call(ready, bound, [output], opts, arithmetic)


for _alias, _name in ALIASES.items():
    setattr(Calls, _alias, getattr(Calls, _name))


def _together(works: Sequence[dist.Work]) -> dist.Work:
    return SeveralWorks([work for work in works if isinstance(work, PendingWork)])
