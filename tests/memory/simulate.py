"""Simulation by sorting: memory at every step of a schedule, and its time.

An oracle for the native simulation and for the verifier, which both go through the steps one by
one. It takes a schedule as correct as it can without more work.
"""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from headrace.memory.errors import ScheduleError
from headrace.memory.graph import Graph
from headrace.memory.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedStep:
    """Memory and time of a schedule.

    Attributes
    ----------
    bytes : (steps,) int64, allocated while a step runs: what is resident, the storages that are
        live, those that it creates, and its workspace (m_i, m~_i^k and m^_k of 4.1 to 4.3).
    time_us : of all steps (4.9).
    storage, first, last : (instances,) int64: its storage, the step that creates it, and the last
        step at which it is live. Sorted by storage, then by `first`.
    events : (events,) int64, sorted: ``storage * span + 2 * step`` of every read, one more of every
        creation.
    span : 2 * steps + 2.
    """

    bytes: np.ndarray
    time_us: float
    storage: np.ndarray
    first: np.ndarray
    last: np.ndarray
    events: np.ndarray
    span: int

    @property
    def peak_bytes(self) -> int:
        """Most that is allocated at any step."""
        return int(self.bytes.max(initial=0))

    @property
    def peak_step(self) -> int:
        """First step with the most."""
        return int(self.bytes.argmax())

    def storages_at(self, step: int) -> list[int]:
        """Return the storages that are live while a step runs, once for each instance."""
        return self.storage[(self.first <= step) & (step <= self.last)].tolist()


class Simulator:
    """Simulates schedules of one graph, of which it keeps the implementations as arrays."""

    def __init__(self, graph: Graph) -> None:
        implementations = [variant for op in graph.operators for variant in op.implementations]
        counts = [len(op.implementations) for op in graph.operators]
        self._graph = graph
        self._first = np.array([0, *accumulate(counts)], dtype=np.int64)
        self._reads = _Lists([variant.reads for variant in implementations])
        self._creates = _Lists([variant.creates for variant in implementations])
        self._time = np.array([variant.time_us for variant in implementations])
        self._workspace = np.array(
            [variant.workspace_bytes for variant in implementations], np.int64
        )
        self._overwrites = np.array(
            [
                -1 if variant.overwrites is None else variant.overwrites
                for variant in implementations
            ],
            np.int64,
        )
        self._nbytes = np.array([storage.nbytes for storage in graph.storages], dtype=np.int64)
        self._kept = np.zeros(len(graph.storages), dtype=bool)
        self._kept[list(graph.results)] = True
        self._outputs = np.zeros(len(graph.storages), dtype=bool)
        self._outputs[list(graph.outputs)] = True

    def run(self, schedule: Schedule) -> SimulatedStep:
        """Simulate a schedule.

        Raises
        ------
        ScheduleError : if a step reads a storage that no step before it has created, or one that
            has been overwritten.
        """
        operators = np.array([step.operator for step in schedule.steps], dtype=np.int64)
        ways = np.array([step.implementation for step in schedule.steps], dtype=np.int64)
        return self.run_arrays(operators, ways, schedule.forward_steps)

    def run_arrays(
        self, operators: np.ndarray, implementations: np.ndarray, forward_steps: int
    ) -> SimulatedStep:
        """Simulate a schedule given as (steps,) int64 arrays; see `run`."""
        count, variants = len(operators), self._first[operators] + implementations
        read_step, read = self._reads.of(variants)
        create_step, created = self._creates.of(variants)
        # all events by storage, then by step; a step reads before it creates
        span = 2 * count + 2
        keys = np.sort(
            np.concatenate((read * span + 2 * read_step, created * span + 2 * create_step + 1))
        )
        storage, moment = np.divmod(keys, span)
        begins = (moment & 1).astype(bool)
        step = moment >> 1
        instance = np.cumsum(begins) - 1
        starts = np.flatnonzero(begins)
        owner = storage[starts][instance] if len(starts) else np.full(len(keys), -1)
        if len(absent := np.flatnonzero((owner != storage) | (instance < 0))):
            raise self._unread(operators, int(step[absent[0]]), int(storage[absent[0]]), "created")
        ends = np.append(starts[1:], len(keys)) - 1
        kind, first, last = storage[starts], step[starts], step[ends]
        self._keep(kind, first, last, forward_steps, count)
        change = np.zeros(count + 1, dtype=np.int64)
        nbytes = self._nbytes[kind]
        np.add.at(change, first, nbytes)
        np.add.at(change, last + 1, -nbytes)
        memory = np.cumsum(change[:-1]) + self._workspace[variants] + self._graph.resident_bytes
        over = self._overwrites[variants]
        if len(places := np.flatnonzero(over >= 0)):
            self._overwrite(memory, operators, places, over[places], (kind, first, last))
        return SimulatedStep(
            bytes=memory,
            time_us=float(self._time[variants].sum()),
            storage=kind,
            first=first,
            last=last,
            events=keys,
            span=span,
        )

    def _keep(
        self, kind: np.ndarray, first: np.ndarray, last: np.ndarray, forward_steps: int, count: int
    ) -> None:
        """Extend the instances that stay to the end of the step, in place."""
        if not len(kind):
            return
        newest = np.append(kind[1:] != kind[:-1], True)
        last[newest & self._kept[kind]] = count - 1
        forward = first < forward_steps
        left = forward & (newest | ~np.append(forward[1:], False))
        last[left & self._outputs[kind]] = count - 1

    def _overwrite(
        self,
        memory: np.ndarray,
        operators: np.ndarray,
        places: np.ndarray,
        over: np.ndarray,
        instances: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> None:
        """Count memory that passes from one storage to another once, in place."""
        kind, first, last = instances
        span = len(operators) + 1
        overwritten = np.searchsorted(kind * span + first, over * span + places) - 1
        if len(late := np.flatnonzero(last[overwritten] != places)):
            at = int(late[0])
            raise self._unread(
                operators, int(last[overwritten[at]]), int(over[at]), "overwritten after"
            )
        memory[places] -= self._nbytes[over]

    def _unread(
        self, operators: np.ndarray, step: int, storage: int, problem: str
    ) -> ScheduleError:
        operator = self._graph.operators[int(operators[step])].name
        name = self._graph.storages[storage].name
        if problem == "created":
            return ScheduleError(f"step {step} ({operator}) reads '{name}', which is not there")
        return ScheduleError(f"step {step} ({operator}) needs '{name}', which was overwritten")


class _Lists:
    """Lists of numbers of different lengths, chosen from by arrays."""

    def __init__(self, lists: list[tuple[int, ...]]) -> None:
        self._count = np.array([len(numbers) for numbers in lists], dtype=np.int64)
        self._start = np.cumsum(self._count) - self._count
        self._items = np.array([item for numbers in lists for item in numbers], dtype=np.int64)

    def of(self, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the place in `lists` and the number, of all numbers of the lists."""
        count = self._count[lists]
        place = np.repeat(np.arange(len(lists)), count)
        within = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
        return place, self._items[self._start[lists][place] + within]


def simulate_step(graph: Graph, schedule: Schedule) -> SimulatedStep:
    """Simulate one schedule; see `Simulator.run`."""
    return Simulator(graph).run(schedule)
