"""Proof that a schedule computes its training step, within a budget.

An interpreter written from the semantics of schedules alone (the docstring of
`headrace.memory.schedule.Schedule`); it shares no code with the simulator or with what makes
schedules. It replays the schedule storage by storage and proves:

- steps name operators and implementations that exist;
- the forward pass runs every forward operator at least once, first runs in the graph's order (so
  that effects such as random numbers are drawn in the order of a plain run); the backward pass runs
  every backward operator exactly once, in the graph's order;
- an operator that may not run again runs once;
- every read is of a live instance: created before and not overwritten;
- outputs and results are live at the end, and never overwritten;
- no step needs more than the budget.
"""

from dataclasses import dataclass, field

from headrace.facades import public_value
from headrace.memory.errors import ScheduleError
from headrace.memory.graph import Graph, Implementation
from headrace.memory.schedule import Schedule


@public_value("headrace.memory")
class VerifiedFigures:
    """Figures of a schedule that `verify` accepted.

    Attributes
    ----------
    peak_bytes : most that is allocated while a step runs, with what is resident.
    peak_step : first step with that.
    time_us : sum over the steps.
    reruns : runs of operators beyond the first.
    """

    peak_bytes: int
    peak_step: int
    time_us: float
    reruns: int


@dataclass(slots=True)
class _Instance:
    """One lifetime of a storage; `end` is the last step that needs it."""

    storage: int
    end: int
    overwritten_at: int | None = None


@dataclass(slots=True)
class _Replay:
    """All instances, and what each step creates."""

    latest: dict[int, _Instance] = field(default_factory=dict[int, _Instance])
    created: list[list[_Instance]] = field(default_factory=list[list[_Instance]])
    overwritten: list[_Instance | None] = field(default_factory=list["_Instance | None"])


def verify(graph: Graph, schedule: Schedule, budget_bytes: int | None = None) -> VerifiedFigures:
    """Prove a schedule correct, and its peak at most `budget_bytes` (None: any).

    Raises
    ------
    ScheduleError : naming the first step, operator and storage that break a rule.
    """
    variants, replay = _verified(graph, schedule)
    memory = _allocated(graph, variants, replay)
    peak = max(memory, default=0)
    where = memory.index(peak) if memory else 0
    if budget_bytes is not None and peak > budget_bytes:
        raise ScheduleError(
            f"{_step(graph, schedule, where)} needs {peak} bytes, the budget is {budget_bytes}"
        )
    return VerifiedFigures(
        peak_bytes=peak,
        peak_step=where,
        time_us=sum(variant.time_us for variant in variants),
        reruns=len(schedule.steps) - len(graph.operators),
    )


def allocated_bytes(graph: Graph, schedule: Schedule) -> list[int]:
    """Return the bytes that are allocated while each step runs, with what is resident.

    Raises
    ------
    ScheduleError : as `verify`.
    """
    return _allocated(graph, *_verified(graph, schedule))


def stored_bytes(graph: Graph, schedule: Schedule) -> int:
    """Return the bytes of storages that are live between the forward and the backward pass.

    Raises
    ------
    ScheduleError : as `verify`.
    """
    _, replay = _verified(graph, schedule)
    return sum(
        graph.storages[instance.storage].nbytes
        for instances in replay.created[: schedule.forward_steps]
        for instance in instances
        if instance.end >= schedule.forward_steps
    )


def _verified(graph: Graph, schedule: Schedule) -> tuple[list[Implementation], _Replay]:
    """Return the implementation of each step and the replay, where they break no rule."""
    variants = _chosen(graph, schedule)
    _check_order(graph, schedule)
    return variants, _replayed(graph, schedule, variants)


def _step(graph: Graph, schedule: Schedule, step: int) -> str:
    operator = schedule.steps[step].operator
    return f"step {step} (operator {operator}, {graph.operators[operator].place})"


def _storage(graph: Graph, storage: int) -> str:
    return f"storage {storage} ({graph.place_of(storage)})"


def _chosen(graph: Graph, schedule: Schedule) -> list[Implementation]:
    """Return the implementation that each step runs."""
    variants: list[Implementation] = []
    for index, step in enumerate(schedule.steps):
        if not 0 <= step.operator < len(graph.operators):
            raise ScheduleError(
                f"step {index} runs operator {step.operator}, the graph has "
                f"0 to {len(graph.operators) - 1}"
            )
        implementations = graph.operators[step.operator].implementations
        if not 0 <= step.implementation < len(implementations):
            raise ScheduleError(
                f"{_step(graph, schedule, index)} runs implementation {step.implementation}, "
                f"the operator has 0 to {len(implementations) - 1}"
            )
        variants.append(implementations[step.implementation])
    return variants


def _check_order(graph: Graph, schedule: Schedule) -> None:
    if not 0 <= schedule.forward_steps <= len(schedule.steps):
        raise ScheduleError(
            f"the forward pass has {schedule.forward_steps} steps, the schedule "
            f"{len(schedule.steps)}"
        )
    ran: set[int] = set()
    next_forward, next_backward = 0, graph.forward_count
    for index, step in enumerate(schedule.steps):
        operator, forward = step.operator, index < schedule.forward_steps
        here = _step(graph, schedule, index)
        if operator in ran:
            if operator >= graph.forward_count or not graph.operators[operator].again:
                raise ScheduleError(f"{here} runs again, which this operator may not")
        elif operator < graph.forward_count:
            if not forward or operator != next_forward:
                raise ScheduleError(f"{here} runs first, needs operator {next_forward} before it")
            next_forward += 1
        else:
            if operator != next_backward:
                raise ScheduleError(f"{here} runs, needs operator {next_backward} before it")
            if forward:
                raise ScheduleError(f"{here} is of the backward pass and runs in the forward pass")
            next_backward += 1
        ran.add(operator)
        if index == schedule.forward_steps - 1 and next_forward < graph.forward_count:
            raise _absent(graph, next_forward, "the forward pass")
    if next_forward < graph.forward_count:
        raise _absent(graph, next_forward, "the forward pass")
    if next_backward < len(graph.operators):
        raise _absent(graph, next_backward, "the schedule")


def _absent(graph: Graph, operator: int, place: str) -> ScheduleError:
    name = graph.operators[operator].name
    return ScheduleError(f"operator {operator} ('{name}') does not run in {place}")


def _replayed(graph: Graph, schedule: Schedule, variants: list[Implementation]) -> _Replay:
    replay = _Replay()
    outputs: dict[int, _Instance] = {}
    for index, implementation in enumerate(variants):
        if index == schedule.forward_steps:
            outputs = _held(graph, replay, graph.outputs, "the forward pass")
        _read(graph, schedule, index, implementation, replay)
        _create(graph, schedule, index, implementation, replay, outputs)
    if schedule.forward_steps == len(variants):
        outputs = _held(graph, replay, graph.outputs, "the forward pass")
    results = _held(graph, replay, graph.results, "the schedule")
    for instance in (*outputs.values(), *results.values()):
        instance.end = len(variants) - 1
    return replay


def _held(
    graph: Graph, replay: _Replay, storages: frozenset[int], part: str
) -> dict[int, _Instance]:
    """Return the instances that stay, which have to be there."""
    instances: dict[int, _Instance] = {}
    for storage in sorted(storages):
        instance = replay.latest.get(storage)
        if instance is None or instance.overwritten_at is not None:
            raise ScheduleError(
                f"{_storage(graph, storage)} has to be kept and is not there at the end of {part}"
            )
        instances[storage] = instance
    return instances


def _read(
    graph: Graph, schedule: Schedule, index: int, implementation: Implementation, replay: _Replay
) -> None:
    for storage in implementation.reads:
        instance = replay.latest.get(storage)
        here = f"{_step(graph, schedule, index)} reads {_storage(graph, storage)}"
        if instance is None:
            raise ScheduleError(f"{here}, which no step before it creates")
        if instance.overwritten_at is not None:
            raise ScheduleError(f"{here}, which step {instance.overwritten_at} overwrites")
        instance.end = index


def _create(
    graph: Graph,
    schedule: Schedule,
    index: int,
    implementation: Implementation,
    replay: _Replay,
    outputs: dict[int, _Instance],
) -> None:
    over = None
    if implementation.overwrites is not None:
        over = replay.latest[implementation.overwrites]
        over.overwritten_at = index
        if outputs.get(over.storage) is over:
            raise ScheduleError(
                f"{_step(graph, schedule, index)} overwrites {_storage(graph, over.storage)}, "
                "which has to be kept"
            )
    instances = [_Instance(storage, index) for storage in implementation.creates]
    replay.latest.update((instance.storage, instance) for instance in instances)
    replay.created.append(instances)
    replay.overwritten.append(over)


def _allocated(graph: Graph, variants: list[Implementation], replay: _Replay) -> list[int]:
    """Return the bytes that are allocated while each step runs."""
    ending: list[list[int]] = [[] for _ in variants]
    for instances in replay.created:
        for instance in instances:
            ending[instance.end].append(graph.storages[instance.storage].nbytes)
    live_bytes, memory = graph.resident_bytes, list[int]()
    for index, implementation in enumerate(variants):
        for number, instance in enumerate(replay.created[index]):
            if number == 0 and replay.overwritten[index] is not None:
                # its memory becomes the new instance's, so it is not freed at this step
                over = replay.overwritten[index]
                assert over is not None
                old = graph.storages[over.storage].nbytes
                live_bytes += graph.storages[instance.storage].nbytes - old
                ending[index].remove(old)
            else:
                live_bytes += graph.storages[instance.storage].nbytes
        memory.append(live_bytes + implementation.workspace_bytes)
        live_bytes -= sum(ending[index])
    return memory
