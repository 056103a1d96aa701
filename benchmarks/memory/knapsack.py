"""The knapsack solvers of torch's partitioner, as baselines on the same graph.

Under `activation_memory_budget`, `torch._functorch` chooses by a knapsack which activations are
saved for the backward pass: an item's weight is its size, its value the time of its operator, and
the capacity the budget's share of all. What is not saved is computed again, on demand.

Departures, so that its schedules are schedules of the graph:

- Operators run by their first implementations, and take what the graph says.
- The items are the storages that the backward pass reads, or, as a second choice, all that the
  forward pass creates. torch's are those that its minimum cut bars from being computed again.
- Recomputation is that of `keep_schedule`: an operand stays from its first reader to its last.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch._functorch._activation_checkpointing.knapsack import (
    dp_knapsack,
    greedy_knapsack,
    ilp_knapsack,
)

from headrace.memory.graph import Graph
from headrace.memory.plan.baselines import keep_schedule
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import Schedule

Knapsack = Callable[[list[float], list[float], float], tuple[float, list[int], list[int]]]
"""Sizes, times and capacity -> value, items to save, items to compute again."""

KNAPSACKS: Mapping[str, Knapsack] = {
    "greedy": greedy_knapsack,
    "ilp": ilp_knapsack,
    "dp": dp_knapsack,
}
SHARES = tuple(n / 50 for n in range(51))
"""Capacities that are tried: the peak is not monotone in them, so that bisection may miss one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A schedule, and what the verifier says of it."""

    schedule: Schedule
    peak_bytes: int
    time_us: float


def knapsack_schedules(graph: Graph, solver: Knapsack) -> list[Verified]:
    """Return the schedules of a solver at all capacities, the fastest first."""
    found: dict[frozenset[int], Verified] = {}
    for items in _items(graph):
        sizes = [float(graph.storages[each].nbytes) for each in items]
        whole = sum(sizes)
        weights, times = [size / whole for size in sizes], list(items.values())
        for share in SHARES if items else ():
            with _native_output_to_stderr():
                _, saved, _ = solver(weights, times, share)
            kept = frozenset(list(items)[each] for each in saved)
            if kept not in found:
                found[kept] = _verified(graph, keep_schedule(graph, kept))
    return sorted(found.values(), key=lambda each: each.time_us)


@contextmanager
def _native_output_to_stderr() -> Generator[None]:
    """Keep out of the tables what SciPy's HiGHS prints by itself."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(before, 1)
        os.close(before)


def fastest(found: list[Verified], budget_bytes: int) -> Schedule | None:
    """Return the first schedule within the budget, or None."""
    return next((each.schedule for each in found if each.peak_bytes <= budget_bytes), None)


def _items(graph: Graph) -> tuple[dict[int, float], ...]:
    """Return storage -> time of the operator that creates it: those that are read, and all."""
    before, after = graph.operators[: graph.forward_count], graph.operators[graph.forward_count :]
    created = {
        storage: each.implementations[0].time_us
        for each in before
        if each.again
        for storage in each.implementations[0].creates
        if graph.storages[storage].nbytes and storage not in graph.outputs
    }
    read = {storage for each in after for storage in each.implementations[0].reads}
    return {each: time for each, time in created.items() if each in read}, created


def _verified(graph: Graph, schedule: Schedule) -> Verified:
    figures = verify(graph, schedule)
    return Verified(schedule=schedule, peak_bytes=figures.peak_bytes, time_us=figures.time_us)
