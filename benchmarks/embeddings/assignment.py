"""Examples assigned to trainers whose partitioned caches have their rows (BagPipe, 5.2.3).

The paper's mixed integer program, one trainer for each example and equally many at each, is a
transportation problem: a flow of least cost solves it exactly.
"""

import statistics
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.graph.python import min_cost_flow

from benchmarks.embeddings.drawn import BATCH, drawn_batches
from benchmarks.harness import Report
from headrace import _native
from headrace.embeddings.data.examples import share_ends
from headrace.embeddings.data.generate import KAGGLE_ROWS

TRAINERS = 8
_PAPER_S = 2.36
"""Of the paper's program, on a machine of 16 cores."""

_PAPER_ROWS = 21_000
_SLOTS = 8_000_000
"""More rows than any of these windows keeps."""


def bars() -> dict[str, str]:
    """Return no bars: no cache of headrace moves examples."""
    return {}


FULL_ONLY = True


def measure(report: Report, *, quick: bool) -> None:
    """Assign batches in the order of the data, and by the caches' rows."""
    del quick
    lookahead, steps = 50, 8
    for assigned in (False, True):
        caches = PartitionedCaches(lookahead, TRAINERS)
        for _ in range(lookahead):
            caches.step(assigned=assigned)
        costs = [caches.step(assigned=assigned) for _ in range(steps)]
        report.row(
            f"partitioned caches: {TRAINERS} trainers, batch {BATCH}, lookahead {lookahead}, "
            "rows counted",
            examples="assigned by a flow" if assigned else "in the data's order",
            rows_of_other_trainers=statistics.mean(cost.remote_rows for cost in costs),
            paper_rows=_PAPER_ROWS if assigned else None,
            assignment_s=statistics.median(cost.seconds for cost in costs) if assigned else None,
            paper_s=_PAPER_S if assigned else None,
        )
    report.note(
        "partitioned caches: a row of another trainer is fetched before the step, and its gradient "
        "goes back; made clicks have independent columns, so examples that share one row share no "
        "others, and an assignment saves less than with the paper's data"
    )


class StepCost:
    """Rows that trainers use of other trainers' caches in a step, and seconds of its assignment."""

    def __init__(self, remote_rows: int, seconds: float) -> None:
        self.remote_rows = remote_rows
        self.seconds = seconds


class PartitionedCaches:
    """Caches of which each row that stays is at one trainer: the one that fetched it.

    A row that no cache has costs nothing; the trainer with most of its uses fetches it.
    """

    def __init__(self, lookahead: int, trainers: int) -> None:
        self._trainers = trainers
        self._owners = np.full(_SLOTS, -1, np.int8)
        self._decisions = _decisions(lookahead)

    def step(self, *, assigned: bool) -> StepCost:
        """Train the next batch, its examples in the data's order or assigned by the rows."""
        decision = next(self._decisions)
        self._owners[decision.slots[decision.fetched == 1]] = -1
        owners = self._owners[decision.slots]
        rows_of_ids = decision.id_rows.reshape(len(KAGGLE_ROWS), -1)
        began = time.perf_counter()
        trainer_of_example = (
            assign(remote_rows(owners[rows_of_ids], self._trainers))
            if assigned
            else _in_order(rows_of_ids.shape[1], self._trainers)
        )
        seconds = time.perf_counter() - began
        keys = rows_of_ids.astype(np.int64) * self._trainers + trainer_of_example
        uses = np.bincount(keys.reshape(-1), minlength=len(owners) * self._trainers)
        uses = uses.reshape(len(owners), self._trainers)
        owners = np.where(owners < 0, uses.argmax(1), owners)
        self._owners[decision.slots] = owners
        elsewhere = np.arange(self._trainers) != owners[:, None]
        return StepCost(int(((uses > 0) & elsewhere).sum()), seconds)


def remote_rows(owners: NDArray[np.int8], trainers: int) -> NDArray[np.int64]:
    """Return the rows that each trainer would need of others for each example.

    Parameters
    ----------
    owners : [tables, examples]: of each example's rows the trainer that has it, -1 where none has.

    Returns
    -------
    [examples, trainers].
    """
    cached = (owners >= 0).sum(0)
    own = [(owners == trainer).sum(0) for trainer in range(trainers)]
    return cached[:, None] - np.stack(own, axis=1)


def assign(costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the trainer of every example, equally many for each, at the least sum of costs.

    Parameters
    ----------
    costs : [examples, trainers].

    Raises
    ------
    ArithmeticError : the solver has found no optimum.
    """
    examples, trainers = costs.shape
    flow: Any = min_cost_flow.SimpleMinCostFlow()
    arcs = flow.add_arcs_with_capacity_and_unit_cost(
        np.repeat(np.arange(examples), trainers),
        np.tile(np.arange(examples, examples + trainers), examples),
        np.ones(examples * trainers, np.int64),
        costs.reshape(-1),
    )
    shares = np.diff(share_ends(examples, trainers), prepend=0)
    flow.set_nodes_supplies(
        np.arange(examples + trainers), np.concatenate([np.ones(examples, np.int64), -shares])
    )
    status = flow.solve()
    if status != flow.OPTIMAL:
        raise ArithmeticError(f"the assignment of {examples} examples ended with {status}")
    return flow.flows(arcs).reshape(examples, trainers).argmax(1)


def _in_order(examples: int, trainers: int) -> NDArray[np.int64]:
    shares = np.diff(share_ends(examples, trainers), prepend=0)
    return np.repeat(np.arange(trainers), shares)


def _decisions(lookahead: int) -> Iterator[_native.LookaheadDecision]:
    """Yield the decisions on drawn batches."""
    window = _native.Lookahead(
        KAGGLE_ROWS, trainers=1, lookahead=lookahead, prefetch=1, slots=_SLOTS
    )
    batches = drawn_batches(KAGGLE_ROWS)
    for batch in islice(batches, lookahead - 1):
        window.push(list(batch.ids), batch.id_ends(1))
    for batch in batches:
        window.push(list(batch.ids), batch.id_ends(1))
        yield window.pop()
