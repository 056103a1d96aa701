"""The process group: every call that torch makes, bound to memory and given to the executor.

A synchronous call runs on the caller's thread and returns a finished work; an asynchronous one is
submitted and returns a pending work. torch's Python layer calls the methods here directly; its
C++ layer (DDP's reducer, functional collectives) reaches the same methods through pybind's
trampolines, always asynchronously.
"""

import atexit
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from torch.distributed.distributed_c10d import AllgatherOptions

from headrace.collectives.demand import Collective
from headrace.collectives.run import binding
from headrace.collectives.run.binding import MOVED, Bound
from headrace.collectives.run.book import fitting, load_book
from headrace.collectives.run.choice import Choice, Chooser
from headrace.collectives.run.executor import Executor, LoadedProgram
from headrace.collectives.run.monitor import monitored_barrier
from headrace.collectives.run.rendezvous import Rendezvous
from headrace.collectives.run.work import (
    CompletedWork,
    PendingWork,
    SeveralWorks,
    completion_thread,
)
from headrace.errors import CommunicationError, InputError
from headrace.settings import Settings

Tensors = Sequence[torch.Tensor]
TensorLists = Sequence[Sequence[torch.Tensor]]

_DONE = CompletedWork()
_CPU = torch.device("cpu")
_CACHED_CALLS = 4096
_LOOSE_WORKS = 64


class _Loaded(NamedTuple):
    program: LoadedProgram
    chunks: int
    blockwise: bool


class _Reduction(NamedTuple):
    """All about an allreduce of one (dtype, elements, operator) but its address."""

    program: LoadedProgram
    chunks: int
    dtype: str
    operator: str
    direct: bool


class HeadraceGroup(dist.ProcessGroup):
    """One rank's member of a process group; made by `create`.

    Parameters
    ----------
    executor : connected; closed by `shutdown`.
    name : torch's name of the group.
    store : the group's part of torch's store, for `monitored_barrier`.
    timeout_s : deadline of calls that bring none, in seconds.
    """

    # What torch's Python layer asks of a "backend"; the group is its own.
    supports_coalescing = False
    supports_splitting = False
    supports_shrinking = False
    supports_reconfigure = False

    def __init__(
        self, executor: Executor, chooser: Chooser, *, name: str, store: Any, timeout_s: float
    ) -> None:
        super().__init__(executor.rank, executor.ranks)
        self._executor = executor
        self._chooser = chooser
        self._rank = executor.rank
        self._ranks = executor.ranks
        self._name = name
        self._store = store
        self._timeout_s = timeout_s
        self._loaded: dict[str, LoadedProgram] = {}
        self._choices: dict[tuple[Collective, int, int], _Loaded] = {}
        self._reductions: dict[tuple[torch.dtype, int, Any], _Reduction] = {}
        self._loose: dict[int, PendingWork] = {}
        self._attached = False
        self._closed = False
        self._barriers = 0
        _live.add(self)

    # ---- what a group is ------------------------------------------------------------------

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._ranks

    def name(self) -> str:
        return "headrace"

    def getBackendName(self) -> str:  # noqa: N802 - called from C++ by this name
        return "headrace"

    def getGroupName(self) -> str:  # noqa: N802 - called from C++ by this name
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        # While it makes a group, torch hangs its flight recorder on every group that has devices.
        # The recorder hooks into torch's dispatcher, which calls to this group do not pass, and
        # its set-up fails on groups without a C++ backend.
        return [_CPU] if self in dist.distributed_c10d._world.pg_map else []

    def _get_backend(self, device: torch.device) -> "HeadraceGroup":
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"the headrace backend serves CPU tensors only, not {device}")
        return self

    def supports_tensor_alloc(self, _device: Any) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of later calls that bring none."""
        self._timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def __repr__(self) -> str:
        return f"<headrace group {self._name!r}: rank {self._rank} of {self._ranks}>"

    # ---- collectives ----------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        opts = opts or AllreduceOptions()
        (tensor,) = tensors
        op = opts.reduceOp
        key = (tensor.dtype, tensor.numel(), op)
        known = self._reductions.get(key) or self._know(tensor, op, key)
        if not (
            known.direct and tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg()
        ):
            return self._allreduce_staged(tensor, known, opts)
        program, chunks, dtype, operator, _ = known
        rows = ((tensor.data_ptr(), key[1], 1, chunks),)
        if opts.asyncOp:
            return self._submit(program, Bound(rows, None, ()), tensors, dtype, operator, opts)
        self._executor.run(
            program, rows, dtype=dtype, operator=operator, deadline_s=self._deadline_s(opts)
        )
        return _DONE

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        opts = opts or AllreduceCoalescedOptions()
        _same_dtype("allreduce_coalesced", tensors)
        if not tensors:
            return _DONE
        flat, copy_back = binding.flattened(tensors)
        known = self._know(flat, opts.reduceOp)
        view = binding.real(flat)
        rows = ((view.data_ptr(), view.numel(), 1, known.chunks),)
        bound = Bound(rows, copy_back, (flat,))
        return self._call(known.program, bound, tensors, opts, known.dtype, known.operator)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        opts = opts or BroadcastOptions()
        (tensor,) = tensors
        binding.check(tensor)
        loaded = self._choose(Collective.BROADCAST, tensor.nbytes, opts.rootRank)
        bound = binding.in_place(tensor, loaded.chunks, moved=True)
        return self._call(loaded.program, bound, tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        opts = opts or ReduceOptions()
        (tensor,) = tensors
        binding.check(tensor)
        dtype, operator = binding.arithmetic(tensor.dtype, opts.reduceOp)
        loaded = self._choose(Collective.REDUCE, tensor.nbytes, opts.rootRank)
        bind = binding.in_place if opts.rootRank == self._rank else binding.read_only
        bound = bind(binding.real(tensor), loaded.chunks)
        return self._call(loaded.program, bound, tensors, opts, dtype, operator)

    def allgather(self, outputs: TensorLists, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = opts or AllgatherOptions()
        (own,), (blocks,) = inputs, outputs
        self._check_blocks("all_gather", blocks, own)
        if any(block.nbytes != own.nbytes for block in blocks):
            loaded = self._load(self._chooser.block_by_block(Collective.ALLGATHER))
            bound = binding.gathered_uneven(blocks, own, self._rank)
        else:
            loaded = self._choose(Collective.ALLGATHER, own.nbytes * self._ranks)
            bound = self._gathered(blocks, own, loaded)
        return self._call(loaded.program, bound, blocks, opts)

    def all_gather_single(
        self, output: torch.Tensor, own: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        opts = opts or AllgatherOptions()
        self._check_whole("all_gather_single", output, own)
        loaded = self._choose(Collective.ALLGATHER, output.nbytes)
        bound = self._gathered([output], own, loaded)
        return self._call(loaded.program, bound, [output], opts)

    def allgather_coalesced(
        self, outputs: TensorLists, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        works = [
            self.allgather([[by_rank[index] for by_rank in outputs]], [own], opts)
            for index, own in enumerate(inputs)
        ]
        return self._together(works)

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        pairs = zip(outputs, inputs, strict=True)
        return self._together([self.all_gather_single(out, own, opts) for out, own in pairs])

    def gather(self, outputs: TensorLists, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = opts or GatherOptions()
        (own,) = inputs
        blocks = outputs[0] if opts.rootRank == self._rank else None
        if blocks is None:
            binding.check(own)
        else:
            self._check_blocks("gather", blocks, own, even=True)
        return self._gather(blocks, own, opts)

    def gather_single(
        self, output: torch.Tensor, own: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        opts = opts or GatherOptions()
        if opts.rootRank != self._rank:
            return self._gather(None, own, opts)
        self._check_whole("gather_single", output, own)
        return self._gather([output], own, opts)

    def scatter(self, outputs: Tensors, inputs: TensorLists, opts: Any = None) -> dist.Work:
        opts = opts or ScatterOptions()
        (output,) = outputs
        blocks = inputs[0] if opts.rootRank == self._rank else None
        if blocks is None:
            binding.check(output)
        else:
            self._check_blocks("scatter", blocks, output, even=True)
        loaded = self._choose(Collective.SCATTER, output.nbytes * self._ranks, opts.rootRank)
        bound = binding.scattered(
            blocks, output, self._rank, self._ranks, loaded.chunks, moved=True
        )
        return self._call(loaded.program, bound, outputs, opts)

    def reduce_scatter(
        self, outputs: Tensors, inputs: TensorLists, opts: Any = None
    ) -> dist.Work:
        (output,), (blocks,) = outputs, inputs
        self._check_blocks("reduce_scatter", blocks, output, even=True)
        return self._reduce_scatter(output, blocks, opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        self._check_whole("reduce_scatter_single", source, output)
        return self._reduce_scatter(output, [source], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        pairs = zip(outputs, inputs, strict=True)
        works = [self.reduce_scatter_single(out, source, opts) for out, source in pairs]
        return self._together(works)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = opts or AllToAllOptions()
        for name, tensors in (("output", outputs), ("input", inputs)):
            if len(tensors) != self._ranks:
                raise InputError(
                    f"all_to_all: the {name} list has {len(tensors)} tensors, needs {self._ranks}"
                )
        _same_dtype("all_to_all", [*outputs, *inputs])
        loaded = self._load(self._chooser.block_by_block(Collective.ALL_TO_ALL))
        return self._call(
            loaded.program, binding.exchanged_lists(outputs, inputs), outputs, opts
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> dist.Work:
        opts = opts or AllToAllOptions()
        _same_dtype("all_to_all_single", [output, source])
        if not output_splits and not input_splits:
            self._check_divisible(output)
            self._check_divisible(source)
            loaded = self._choose(Collective.ALL_TO_ALL, source.nbytes)
            bound = binding.exchanged(output, source, self._ranks, loaded.chunks)
        else:
            loaded = self._load(self._chooser.block_by_block(Collective.ALL_TO_ALL))
            bound = binding.exchanged_rows(
                output,
                source,
                self._splits("output_split_sizes", output, output_splits),
                self._splits("input_split_sizes", source, input_splits),
            )
        return self._call(loaded.program, bound, [output], opts)

    def barrier(self, opts: Any = None) -> dist.Work:
        opts = opts or BarrierOptions()
        token = torch.zeros(1, dtype=torch.uint8)
        loaded = self._choose(Collective.ALLREDUCE, 1)
        return self._call(loaded.program, binding.in_place(token, loaded.chunks), (), opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Barrier through the store that names the ranks which did not come."""
        limit = timeout or timedelta(seconds=self._timeout_s)
        self._barriers += 1
        monitored_barrier(
            self._store, self._rank, self._ranks, self._barriers, limit, all_ranks=wait_all_ranks
        )

    # the names that torch had for these before
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    gather_into_tensor = gather_single
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # ---- point to point -------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        bound = binding.in_place(tensor, 1, moved=True)
        address, size, _, _ = bound.segments[0]
        handle = self._executor.send(address, size, dst, tag, deadline_s=self._timeout_s)
        return self._loosely(handle, tensors, bound._replace(after=None))

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        bound = binding.in_place(tensor, 1, moved=True)
        address, size, _, _ = bound.segments[0]
        handle = self._executor.recv(address, size, src, tag, deadline_s=self._timeout_s)
        return self._loosely(handle, tensors, bound)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        return self.recv(tensors, -1, tag)

    recvAnysource = recv_anysource  # noqa: N815 - called from C++ by this name

    # Calls inside a coalescing region run as they come.

    def start_coalescing(self, _device: Any) -> None:
        """Begin a region: nothing to prepare."""

    def end_coalescing(self, _device: Any) -> dist.Work:
        return _DONE

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    # ---- the end --------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Close all connections; calls under way fail. Doing it twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._executor.close()
        if self._attached:
            completion_thread.detach()
        for work in list(self._loose.values()):
            work.is_completed()  # takes over the executor's verdict
        # torch may keep this object for good; what it held natively goes now
        self._executor = _Closed(self._name)
        for table in (self._loose, self._loaded, self._choices, self._reductions):
            table.clear()
        _live.discard(self)

    abort = shutdown

    # ---- inside ---------------------------------------------------------------------------

    def _know(
        self, tensor: torch.Tensor, op: Any, key: tuple[torch.dtype, int, Any] | None = None
    ) -> _Reduction:
        binding.check(tensor)
        dtype, operator = binding.arithmetic(tensor.dtype, op)
        loaded = self._choose(Collective.ALLREDUCE, tensor.nbytes)
        known = _Reduction(
            loaded.program, loaded.chunks, dtype, operator, not tensor.dtype.is_complex
        )
        if key is not None:
            _make_room(self._reductions)
            self._reductions[key] = known
        return known

    def _allreduce_staged(
        self, tensor: torch.Tensor, known: _Reduction, opts: Any
    ) -> dist.Work:
        binding.check(tensor)
        bound = binding.in_place(binding.real(tensor), known.chunks)
        return self._call(known.program, bound, [tensor], opts, known.dtype, known.operator)

    def _gathered(self, blocks: Tensors | None, own: torch.Tensor, loaded: _Loaded) -> Bound:
        return binding.gathered(
            blocks, own, self._rank, self._ranks, loaded.chunks, blockwise=loaded.blockwise
        )

    def _gather(self, blocks: Tensors | None, own: torch.Tensor, opts: Any) -> dist.Work:
        loaded = self._choose(Collective.GATHER, own.nbytes * self._ranks, opts.rootRank)
        bound = self._gathered(blocks, own, loaded)
        return self._call(loaded.program, bound, blocks or (), opts)

    def _reduce_scatter(self, output: torch.Tensor, blocks: Tensors, opts: Any) -> dist.Work:
        opts = opts or ReduceScatterOptions()
        dtype, operator = binding.arithmetic(output.dtype, opts.reduceOp)
        loaded = self._choose(Collective.REDUCE_SCATTER, output.nbytes * self._ranks)
        bound = binding.scattered(
            blocks, output, self._rank, self._ranks, loaded.chunks, moved=False
        )
        return self._call(loaded.program, bound, [output], opts, dtype, operator)

    def _choose(self, collective: Collective, total_bytes: int, root: int = 0) -> _Loaded:
        key = (collective, total_bytes, root)
        known = self._choices.get(key)
        if known is None:
            known = self._load(self._chooser.choose(*key))
            _make_room(self._choices)
            self._choices[key] = known
        return known

    def _load(self, choice: Choice) -> _Loaded:
        digest = choice.proof.program_digest
        program = self._loaded.get(digest)
        if program is None:
            program = self._loaded[digest] = self._executor.load(choice.program, choice.proof)
        return _Loaded(program, choice.chunks, choice.blockwise)

    def _call(
        self,
        program: LoadedProgram,
        bound: Bound,
        tensors: Tensors,
        opts: Any,
        dtype: str = MOVED,
        operator: str = "sum",
    ) -> dist.Work:
        if opts.asyncOp:
            return self._submit(program, bound, tensors, dtype, operator, opts)
        self._executor.run(
            program,
            bound.segments,
            dtype=dtype,
            operator=operator,
            deadline_s=self._deadline_s(opts),
        )
        if bound.after is not None:
            bound.after()
        return _DONE

    def _submit(
        self,
        program: LoadedProgram,
        bound: Bound,
        tensors: Tensors,
        dtype: str,
        operator: str,
        opts: Any,
    ) -> PendingWork:
        if not self._attached:
            completion_thread.attach()
            self._attached = True
        handle = self._executor.submit(
            program,
            bound.segments,
            dtype=dtype,
            operator=operator,
            deadline_s=self._deadline_s(opts),
            notify=True,
        )
        work = PendingWork(self._executor, handle, tensors, bound.after, bound.keep)
        completion_thread.enter(handle, work)
        return work

    def _loosely(self, handle: int, tensors: Tensors, bound: Bound) -> PendingWork:
        # A message is usually waited for at once, so the completion thread is left asleep. The
        # table keeps the buffers of those that nobody waits for.
        if len(self._loose) >= _LOOSE_WORKS:
            for work in list(self._loose.values()):
                work.is_completed()
        work = PendingWork(
            self._executor, handle, tensors, bound.after, bound.keep, loose=self._loose
        )
        return work

    def _together(self, works: Sequence[dist.Work]) -> dist.Work:
        pending = [work for work in works if isinstance(work, PendingWork)]
        return SeveralWorks(pending) if pending else _DONE

    def _deadline_s(self, opts: Any) -> float:
        seconds = opts.timeout.total_seconds()  # negative: not set
        return seconds if seconds > 0 else self._timeout_s

    def _check_blocks(
        self, call: str, blocks: Tensors, own: torch.Tensor, *, even: bool = False
    ) -> None:
        binding.check(own)
        if len(blocks) != self._ranks:
            raise InputError(
                f"{call}: the list has {len(blocks)} tensors, needs one per rank ({self._ranks})"
            )
        _same_dtype(call, [own, *blocks])
        for rank, block in enumerate(blocks):
            if (even or rank == self._rank) and block.numel() != own.numel():
                raise InputError(
                    f"{call}: tensor {rank} of the list has {block.numel()} elements, "
                    f"needs {own.numel()}"
                )

    def _check_whole(self, call: str, whole: torch.Tensor, block: torch.Tensor) -> None:
        _same_dtype(call, [whole, block])
        if whole.numel() != block.numel() * self._ranks:
            raise InputError(
                f"{call}: the large tensor has {whole.numel()} elements, needs "
                f"{self._ranks} times the {block.numel()} of the small one"
            )

    def _check_divisible(self, tensor: torch.Tensor) -> None:
        first = tensor.shape[0] if tensor.dim() else 1
        if first % self._ranks:
            raise InputError(
                f"all_to_all_single: dimension 0 is {first}, needs a multiple of {self._ranks} "
                "(or split sizes)"
            )

    def _splits(self, name: str, tensor: torch.Tensor, splits: Sequence[int]) -> Sequence[int]:
        if not splits:
            self._check_divisible(tensor)
            return [tensor.shape[0] // self._ranks] * self._ranks
        if len(splits) != self._ranks or sum(splits) != tensor.shape[0] or min(splits) < 0:
            raise InputError(
                f"all_to_all_single: {name} is {list(splits)}, needs {self._ranks} sizes that "
                f"add up to {tensor.shape[0]}"
            )
        return splits


class _Closed:
    """Stands for the executor of a group that was destroyed: every use is an error."""

    def __init__(self, group: str) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        raise CommunicationError(f"{name}: process group {self._group!r} was destroyed")


def _same_dtype(call: str, tensors: Tensors) -> None:
    for tensor in tensors:
        binding.check(tensor)
        if tensor.dtype != tensors[0].dtype:
            raise InputError(
                f"{call}: the tensors are of {tensors[0].dtype} and {tensor.dtype}, needs one "
                "dtype for all"
            )


def _make_room(cache: dict[Any, Any]) -> None:
    if len(cache) >= _CACHED_CALLS:  # sizes that never repeat (pickled objects, say)
        cache.clear()


def create(options: Any) -> HeadraceGroup:
    """Make the process group that torch's `init_process_group` or `new_group` asked for.

    Parameters
    ----------
    options : torch's ``_DistributedBackendOptions``.

    Raises
    ------
    InputError : the ranks' plan books differ; a setting is wrong.
    CommunicationError : naming the ranks that did not come in time.
    """
    settings = Settings.from_environment()
    rank, ranks, members = options.group_rank, options.group_size, options.global_ranks_in_group
    timeout_s = min(options.timeout.total_seconds(), settings.deadline_s)
    book = load_book(settings.plan_book)
    rendezvous = Rendezvous(options.store, rank, ranks, timeout_s)
    meeting = rendezvous.meet(
        interface=settings.socket_interface, book_digest="" if book is None else book.digest
    )
    whole = not members or list(members) == list(range(dist.get_world_size()))
    if book is not None:
        book = fitting(book, meeting.rank_host, speak=rank == 0) if whole else None
    executor = Executor(
        rank,
        ranks,
        host=meeting.host,
        token=meeting.token,
        channels=settings.channels,
        completions=completion_thread.queue,
    )
    try:
        executor.connect(rendezvous.addresses(executor.address), timeout_s)
    except BaseException:
        executor.close()
        raise
    return HeadraceGroup(
        executor,
        Chooser(ranks, book),
        name=options.group_id,
        store=options.store,
        timeout_s=timeout_s,
    )


_live: "weakref.WeakSet[HeadraceGroup]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what the script left open: no thread may outlive the interpreter."""
    for group in list(_live):
        group.shutdown()
    completion_thread.forget()
