"""One rank's part in tracing a collective: warm up, run it some times, check every result."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace._native import DataType
from headrace.collectives.demand import REDUCING, Collective, Demand
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Program
from headrace.collectives.run.choose import Chooser
from headrace.collectives.trace.gathering import GatheredTrace, gather
from headrace.errors import InputError, VerificationError
from headrace.executor import Executor

_ELEMENT_BYTES = 4  # float32
_PERIOD = 31  # of the values: small, so that every sum is exact

OnProgress = Callable[[str, float], None]
"""Called with the current activity and the fraction done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """A collective to trace, the same at all ranks.

    Attributes
    ----------
    total_bytes : as `Demand.chunk_bytes` counts them; rounded down to whole float32 a block.
    repeats, warm_ups : number of traced runs, and of runs before them.
    deadline_s : of every call.

    Raises
    ------
    InputError : too few bytes or repeats, or a collective that only its demand describes.
    """

    program: Program
    total_bytes: int
    repeats: int = 9
    warm_ups: int = 3
    deadline_s: float = 60.0

    def __post_init__(self) -> None:
        demand = self.program.demand
        if demand.collective in (Collective.ALL_TO_ALL_V, Collective.CUSTOM):
            raise InputError(f"{demand.collective} cannot be traced by name: needs another one")
        least = demand.blocks * _ELEMENT_BYTES
        if self.total_bytes < least:
            raise InputError(
                f"size is {self.total_bytes} bytes, needs at least {least}: a float32 for each of "
                f"the {demand.blocks} blocks of {demand.collective}"
            )
        if self.repeats < 1 or self.warm_ups < 0:
            raise InputError(
                f"repeats is {self.repeats} and warm_ups {self.warm_ups}, needs at least 1 and 0"
            )

    @property
    def block_elements(self) -> int:
        """Elements of float32 in every block."""
        return self.total_bytes // (self.program.demand.blocks * _ELEMENT_BYTES)

    @property
    def moved_bytes(self) -> int:
        """`total_bytes`, in whole elements."""
        return self.block_elements * self.program.demand.blocks * _ELEMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceResult:
    """Trace of the repeat of median time, and the times of all repeats in us."""

    trace: GatheredTrace
    totals_us: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, for `from_json`."""
        return {"trace": self.trace.to_json(), "totals_us": list(self.totals_us)}

    @classmethod
    def from_json(cls, columns: dict[str, Any]) -> "TraceResult":
        """Rebuild what `to_json` returned."""
        return cls(
            trace=GatheredTrace.from_json(columns["trace"]),
            totals_us=tuple(float(us) for us in columns["totals_us"]),
        )


def trace_ranks(
    executor: Executor, job: TraceJob, on_progress: OnProgress | None = None
) -> TraceResult | None:
    """Run the job; every rank of a connected group calls this.

    Returns
    -------
    TraceResult | None
        At rank 0, None elsewhere.

    Raises
    ------
    VerificationError : the program is wrong, or a result was.
    CommunicationError : a rank is gone.
    """
    report = on_progress or (lambda _what, _share: None)
    loaded = executor.load(job.program, verify(job.program))
    buffer, contents, expected = _contents(job, executor.rank)
    demand = job.program.demand
    sides = 2 if demand.collective is Collective.ALL_TO_ALL else 1
    side_bytes = buffer.nbytes // sides
    call = executor.prepare(
        loaded,
        [
            (buffer.ctypes.data + i * side_bytes, job.block_elements, demand.blocks, demand.chunks)
            for i in range(sides)
        ],
        dtype=DataType.float32,
        deadline_s=job.deadline_s,
    )
    barrier = _barrier(executor, job.deadline_s)
    traces: list[GatheredTrace] = []
    for index in range(job.warm_ups + job.repeats):
        np.copyto(buffer, contents)
        barrier()
        warm = index >= job.warm_ups
        report("tracing" if warm else "warming up", index / (job.warm_ups + job.repeats))
        if not warm:
            executor.run(call)
            continue
        recorded = executor.trace(call)
        _check(job, executor.rank, buffer, expected)
        trace = gather(executor, job.program, recorded)
        if trace is not None:
            traces.append(trace)
    barrier()  # no rank closes before all results were checked
    if not traces:
        return None
    totals = [trace.total_us for trace in traces]
    median = sorted(range(len(totals)), key=totals.__getitem__)[(len(totals) - 1) // 2]
    return TraceResult(trace=traces[median], totals_us=tuple(totals))


def _barrier(executor: Executor, deadline_s: float) -> Callable[[], None]:
    """Return a barrier: a function that returns once all ranks have called it."""
    choice = Chooser(executor.ranks).choose(Collective.ALLREDUCE, _ELEMENT_BYTES)
    token = np.zeros(1, dtype=np.float32)
    call = executor.prepare(
        executor.load(choice.program, choice.proof),
        [(token.ctypes.data, 1, 1, choice.chunks)],
        dtype=DataType.float32,
        deadline_s=deadline_s,
    )

    def barrier() -> None:
        executor.run(call)
        token[0] = 0.0

    return barrier


def _contents(job: TraceJob, rank: int) -> tuple[np.ndarray, np.ndarray, dict[int, np.ndarray]]:
    """Return a rank's buffer, its content before a call, and the expected blocks after it."""
    demand = _whole_blocks(job.program.demand)
    count = job.block_elements

    def value(item: int, of: int) -> np.ndarray:
        return ((np.arange(count) + 7 * item + 3 * of) % _PERIOD).astype(np.float32)

    contents = np.full(demand.slots * count, -1.0, dtype=np.float32)
    for slot, item, _ in demand.initial(rank):
        contents[slot * count : (slot + 1) * count] = value(item, rank)
    expected: dict[int, np.ndarray] = {}
    for slot, item, mask in demand.final(rank):
        total = np.zeros(count, dtype=np.float32)
        for of in range(demand.ranks):
            if mask >> of & 1:
                total += value(item, of)
        expected[slot] = total
    return contents.copy(), contents, expected


def _whole_blocks(demand: Demand) -> Demand:
    return replace(demand, chunks=1)


def _check(job: TraceJob, rank: int, buffer: np.ndarray, expected: dict[int, np.ndarray]) -> None:
    count = job.block_elements
    for block, values in expected.items():
        block_values = buffer[block * count : (block + 1) * count]
        wrong = np.flatnonzero(block_values != values)
        if len(wrong):
            at = int(wrong[0])
            what = "sum" if job.program.demand.collective in REDUCING else "value"
            raise VerificationError(
                f"rank {rank}, block {block}, element {at} of {count}: the {what} is "
                f"{block_values[at]}, should be {values[at]}"
            )
