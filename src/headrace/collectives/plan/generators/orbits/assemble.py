"""From growths to plans: forwards an allgather, backwards a reduce_scatter, both an allreduce."""

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators.orbits.classes import LinkClasses
from headrace.collectives.plan.generators.orbits.group import RegularGroup
from headrace.collectives.plan.generators.orbits.grow import Growth
from headrace.collectives.plan.generators.orbits.plan import SEND_COLUMNS, OrbitPlan

_Columns = dict[str, np.ndarray]


def allgather_plan(
    group: RegularGroup, classes: LinkClasses, growth: Growth, chunks: int
) -> OrbitPlan:
    """Return `growth` as an allgather plan."""
    return _plan(Collective.ALLGATHER, chunks, group, _forwards(classes, growth))


def reduce_scatter_plan(
    group: RegularGroup, transposed: LinkClasses, growth: Growth, chunks: int
) -> OrbitPlan:
    """Return `growth` backwards; it and its classes are of the transposed topology (5.7)."""
    return _plan(Collective.REDUCE_SCATTER, chunks, group, _backwards(transposed, growth))


def allreduce_plan(
    group: RegularGroup,
    classes: LinkClasses,
    growth: Growth,
    transposed: LinkClasses,
    backwards: Growth,
    chunks: int,
) -> OrbitPlan:
    """Return `backwards` backwards, then `growth`; chunks are those that a rank owns.

    Only data dependencies separate the halves: an owner spreads complete chunks while others are
    still combined.
    """
    first, second = _backwards(transposed, backwards), _forwards(classes, growth)
    if len(first["message"]):
        second["message"] = second["message"] + first["message"][-1] + 1
    both = {name: np.concatenate([first[name], second[name]]) for name in first}
    return _plan(Collective.ALLREDUCE, chunks * group.ranks, group, both)


def _forwards(classes: LinkClasses, growth: Growth) -> _Columns:
    return {
        "dst": classes.dst[growth.link_class],
        "block": growth.block,
        "origin": np.zeros_like(growth.block),
        "chunk": growth.chunk,
        "reduce": np.zeros_like(growth.block),
        "message": growth.message,
    }


def _backwards(transposed: LinkClasses, growth: Growth) -> _Columns:
    """Reverse `growth`: rank 0 sends to a neighbour what it received; the last end begins first."""
    messages = len(growth.end_us)
    # Stable, and reversed: of those that end together the one that began last goes first.
    order = np.argsort(-growth.end_us[::-1], kind="stable")
    number = np.empty(messages, dtype=np.int64)
    number[messages - 1 - order] = np.arange(messages)
    # The sender backwards is the receiver forwards: names are the receiver's.
    sender = np.argsort(transposed.held, axis=1)
    to = sender[:, 0]
    rows = np.argsort(number[growth.message], kind="stable")
    s = growth.link_class[rows]
    return {
        "dst": to[s],
        "block": sender[s, growth.block[rows]],
        "origin": np.zeros_like(s),
        "chunk": growth.chunk[rows],
        "reduce": np.ones_like(s),
        "message": number[growth.message[rows]],
    }


def _plan(collective: Collective, chunks: int, group: RegularGroup, columns: _Columns) -> OrbitPlan:
    return OrbitPlan(
        demand=Demand(collective=collective, ranks=group.ranks, chunks=chunks),
        generators=group.generators,
        sends={
            name: np.ascontiguousarray(columns[name], dtype=dtype)
            for name, dtype in SEND_COLUMNS.items()
        },
    )
