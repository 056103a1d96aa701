"""Limits of runtimes: one table, and the check of an algorithm against it.

`limits` has the rules of every executor of MSCCL XML; here are those that differ. A plan is
exported for a runtime, by default for the strictest: for all that read its format.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace.collectives.demand import Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.export.algorithm import Algorithm, Finding, Threadblock
from headrace.collectives.export.buffers import COLLECTIVES, MSCCL_NAMES, NAMES

XML, JSON = "msccl-xml", "mscclpp-json"
STRICTEST = "strictest"
"""All runtimes of the format at once."""

PROCESSORS: Mapping[str, int] = {"V100": 80, "A100": 108, "H100": 132}
"""Streaming multiprocessors. Threadblocks wait for each other, so all have to run at once."""


_BYTE, _SHORT, _NONE = (1 << 7) - 1, (1 << 15) - 1, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A runtime's limits, as published builds have them.

    Attributes
    ----------
    form : the format that it reads.
    steps : of a threadblock: steps, or operations of MSCCL++.
    threadblocks : of a GPU.
    awaited : the highest id of a threadblock that another may wait for.
    offset : the highest offset in chunks.
    channels, buffers : of a threadblock, those of peers (MSCCL++).
    semaphores : of one operation (MSCCL++).
    per_call : element counts of the call (an allgather's elements of one rank) must be multiples
        of the chunks, not those of the whole buffer.
    align_bytes : bytes that each chunk has to be a multiple of; 0: elements count instead.
    collectives : the names of those that it has.
    """

    name: str
    form: str
    steps: int
    threadblocks: int
    awaited: int
    offset: int
    channels: int = _NONE
    buffers: int = _NONE
    semaphores: int = _NONE
    per_call: bool = False
    align_bytes: int = 0
    collectives: Mapping[Collective, str] = field(default_factory=lambda: NAMES)


RUNTIMES: Mapping[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        # microsoft/msccl, src/include/msccl.h: MSCCL_MAX_NUM_STEPS, MSCCL_MAX_NUM_THREAD_BLOCKS,
        # int8_t dependentBid, int16_t srcoffset; allcount % nchunksPerLoop where it is chosen;
        # src/graph/topo.cc: names of collectives.
        Runtime(
            name="msccl",
            form=XML,
            steps=256,
            threadblocks=216,
            awaited=_BYTE,
            offset=_SHORT,
            collectives=MSCCL_NAMES,
        ),
        # Azure/msccl-executor-nccl, src/include/msccl/msccl_struct.h: the same names, 32 blocks
        # for each of 32 channels; src/misc/msccl/msccl_lifecycle.cc: count % nChunksPerLoop.
        Runtime(
            name="msccl-executor-nccl",
            form=XML,
            steps=64,
            threadblocks=1024,
            awaited=_BYTE,
            offset=_SHORT,
            per_call=True,
        ),
        # microsoft/mscclpp, execution_common.hpp: MAX_OPERATION, MAX_CHANNEL (of buffers, too),
        # MAX_DEVICE_SEMAPHORES; execution_plan.cc: a size in units of buffer_alignment is a
        # multiple of the chunks; threadblocks are not limited.
        Runtime(
            name="mscclpp",
            form=JSON,
            steps=64,
            threadblocks=_NONE,
            awaited=_NONE,
            offset=_NONE,
            channels=16,
            buffers=16,
            semaphores=16,
            align_bytes=16,
        ),
    )
}
"""By name."""


def runtime_of(name: str, form: str) -> Runtime:
    """Return a runtime by name, or the strictest of all that read `form`; raises ProgramError."""
    readers = [runtime for runtime in RUNTIMES.values() if runtime.form == form]
    if name == STRICTEST:
        limits = ("steps", "threadblocks", "awaited", "offset")
        return replace(
            readers[0],
            name=" and ".join(runtime.name for runtime in readers),
            per_call=any(runtime.per_call for runtime in readers),
            # no name may serve them all: see `unread`
            collectives=max((runtime.collectives for runtime in readers), key=len),
            **{limit: min(getattr(runtime, limit) for runtime in readers) for limit in limits},
        )
    if name not in RUNTIMES:
        raise ProgramError(f"runtime is {name!r}, needs one of {', '.join([STRICTEST, *RUNTIMES])}")
    if RUNTIMES[name].form != form:
        raise ProgramError(
            f"runtime {name} reads {RUNTIMES[name].form}, not {form}; "
            f"needs one of {', '.join([STRICTEST, *(runtime.name for runtime in readers)])}"
        )
    return RUNTIMES[name]


def unread(name: str, form: str) -> list[Runtime]:
    """Return the runtimes that read `form` and know no collective of a name."""
    return [
        runtime
        for runtime in RUNTIMES.values()
        if runtime.form == form and name not in runtime.collectives.values()
    ]


class Extreme(NamedTuple):
    """Largest value in a file of a figure that runtimes limit, and its location.

    Attributes
    ----------
    limit : the field of `Runtime`.
    text : the figure in words, without its location.
    """

    limit: str
    value: int
    text: str
    gpu: int = -1
    threadblock: int = -1
    step: int = -1

    def finding(self, refused_by: str, *, fatal: bool = False) -> Finding:
        """Return a finding that names the runtimes in `refused_by`."""
        return Finding("limit", f"{self.text}: refused by {refused_by}", *self[3:], fatal=fatal)


def refused(extremes: Iterable[Extreme], runtime: Runtime) -> list[Finding]:
    """Return the broken limits of `runtime`, one line each."""
    return [
        extreme.finding(f"{runtime.name} (at most {most})", fatal=True)
        for extreme in extremes
        if extreme.value > (most := getattr(runtime, extreme.limit))
    ]


def refusals(extremes: Iterable[Extreme], form: str) -> list[Finding]:
    """Return, one line a rule, the runtimes that read `form` and refuse or misread a file.

    Fatal is only a wait for a threadblock beyond a signed byte: no runtime reports that one.
    """
    refused: list[Finding] = []
    for extreme in extremes:
        limits = {
            runtime.name: getattr(runtime, extreme.limit)
            for runtime in RUNTIMES.values()
            if runtime.form == form
        }
        if names := [f"{name} (at most {n})" for name, n in limits.items() if extreme.value > n]:
            refused.append(extreme.finding(" and ".join(names), fatal=extreme.limit == "awaited"))
    return refused


def extremes(algorithm: Algorithm) -> list[Extreme]:
    """Return the largest figures of threadblocks that runtimes limit."""
    extreme_values: list[Extreme] = []
    for gpu in algorithm.gpus:
        blocks = len(gpu.threadblocks)
        extreme_values.append(Extreme("threadblocks", blocks, f"has {blocks} threadblocks", gpu.id))
        for tb in gpu.threadblocks:
            extreme_values += _of_threadblock(gpu.id, tb)
    return largest(extreme_values)


def largest(candidates: Iterable[Extreme]) -> list[Extreme]:
    """Return the first of the largest by limit."""
    by_limit: dict[str, Extreme] = {}
    for extreme in candidates:
        if extreme.limit not in by_limit or extreme.value > by_limit[extreme.limit].value:
            by_limit[extreme.limit] = extreme
    return list(by_limit.values())


def _of_threadblock(gpu: int, tb: Threadblock) -> Iterator[Extreme]:
    steps = len(tb.steps)
    yield Extreme("steps", steps, f"has {steps} steps", gpu, tb.id)
    waits = [s.depends.threadblock if s.depends else -1 for s in tb.steps]
    offsets = [max(s.src.offset, s.dst.offset) for s in tb.steps]
    for limit, values, text in (
        ("awaited", waits, "waits for threadblock {}, kept in a signed byte"),
        ("offset", offsets, "touches offset {}"),
    ):
        value = max(values, default=-1)
        if value >= 0:
            yield Extreme(limit, value, text.format(value), gpu, tb.id, values.index(value))


def selection(algorithm: Algorithm, runtime: Runtime) -> tuple[str, int]:
    """Return the calls that select the file, in words, and the divisor of their whole buffers.

    The second is in bytes for a runtime that aligns chunks, else in elements. For other counts a
    runtime silently takes another algorithm.
    """
    loop, collective = algorithm.chunks_per_loop, COLLECTIVES[algorithm.collective]
    ranks = len(algorithm.gpus)
    spread = {
        Collective.ALLGATHER: "elements of one rank",
        Collective.REDUCE_SCATTER: "elements of one rank",
        Collective.ALL_TO_ALL: "elements for one rank",
    }
    if runtime.align_bytes:
        multiple_bytes = loop * runtime.align_bytes
        return (
            f"sizes of the whole buffer that are multiples of {multiple_bytes} bytes",
            multiple_bytes,
        )
    if runtime.per_call and collective in spread:
        return f"{spread[collective]} that are multiples of {loop}", loop * ranks
    return f"element counts that are multiples of {loop}", loop


def oversubscription(algorithm: Algorithm) -> str:
    """Return a warning if a GPU has more threadblocks than some have processors, or ''."""
    most = max((len(gpu.threadblocks) for gpu in algorithm.gpus), default=0)
    short = [f"{name} ({count})" for name, count in PROCESSORS.items() if count < most]
    if not short:
        return ""
    return (
        f"{most} threadblocks on a GPU are more than the processors of {', '.join(short)}: all "
        "have to run at once, or calls hang there; export fewer instances"
    )
